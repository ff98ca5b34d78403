// What the page carries packed: gzip in base64 inside a script element that no browser runs.

/** The unpacked bytes of an element. Throws where they are damaged. */
export async function inflate(element: HTMLElement): Promise<Uint8Array> {
  const text = (element.textContent ?? "").trim();
  const binary = atob(text);
  const packed = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) packed[i] = binary.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
