// Bundles the viewer into the Python package, or with --test the tests for node's runner.
// The charts' library is packed beside it: one file of the report holds everything.

import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const HERE = dirname(fileURLToPath(import.meta.url));
const OUT = process.argv.includes("--out")
  ? process.argv[process.argv.indexOf("--out") + 1]
  : join(HERE, "..", "gpuprof", "report", "page", "assets");

if (process.argv.includes("--test")) {
  const tests = readdirSync(join(HERE, "test")).filter((name) => name.endsWith(".test.ts"));
  await build({
    entryPoints: tests.map((name) => join(HERE, "test", name)),
    outdir: join(HERE, "build", "test"),
    outExtension: { ".js": ".mjs" },
    bundle: true,
    platform: "node",
    format: "esm",
    target: "node20",
    logLevel: "warning",
  });
} else {
  mkdirSync(OUT, { recursive: true });
  await build({
    entryPoints: ["viewer.ts", "theme_button.ts"].map((name) => join(HERE, "src", name)),
    outdir: OUT,
    bundle: true,
    minify: true,
    format: "iife",
    target: "es2022",
    charset: "ascii", // the bundle stands inside a page, whatever that page's encoding
    legalComments: "none",
    logLevel: "warning",
  });
  writeFileSync(join(OUT, "sources.sha256"), `${digest()}\n`);
  const plotly = join(HERE, "node_modules", "plotly.js-basic-dist-min");
  writeFileSync(join(OUT, "plotly-basic.min.js.gz"), gzipSync(readFileSync(join(plotly, "plotly-basic.min.js")), { level: 9 }));
  writeFileSync(join(OUT, "plotly-basic.LICENSE"), readFileSync(join(plotly, "LICENSE")));
}

// Of the sources, so that a bundle that does not belong to them is noticed without building anything.
function digest() {
  const hash = createHash("sha256");
  const sources = readdirSync(join(HERE, "src"), { recursive: true, withFileTypes: true }).filter((f) => f.isFile());
  for (const path of sources.map((f) => join(f.parentPath, f.name)).sort()) {
    hash.update(`${relative(HERE, path)}\0`);
    hash.update(readFileSync(path));
  }
  for (const name of ["build.mjs", "package-lock.json", "tsconfig.json"]) hash.update(readFileSync(join(HERE, name)));
  return hash.digest("hex");
}
