"""The step of a LoRA fine-tune of a transformer whose layers send each token to one of a few experts."""

from __future__ import annotations

import random

from benchmarks import kernels
from benchmarks.kernels import BF16, FLOAT, LONG
from benchmarks.synthetic_step import COPY, Step, Tensor

BATCH, LENGTH, WIDTH, HEADS, HEAD, RANK, VOCABULARY = 2, 512, 2048, 32, 64, 8, 32_000
EXPERTS = 3
CODES = {BF16: 15, FLOAT: 6, LONG: 4}
"""How PyTorch's ops are given a type."""


def record(layers: int, seed: int) -> Step:
    """One step of a model of this many layers; the seed decides how many tokens each expert gets."""
    s, rng = Step(), random.Random(seed)
    with s.annotation("ProfilerStep#%d", ("step", 0)):
        with s.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
            tokens = Tensor.of(LONG, BATCH, LENGTH)
            with s.op("aten::to", tokens, 4, True, False, None), s.op("aten::copy_", tokens, tokens, True):
                s.copy("Memcpy HtoD (Pinned -> Device)", tokens.nbytes, "cudaMemcpyAsync", COPY)
        x = Tensor.of(BF16, BATCH, LENGTH, WIDTH)
        with s.op("aten::embedding", Tensor.of(BF16, VOCABULARY, WIDTH), tokens, -1, False, False):
            name = "void at::native::vectorized_gather_kernel<16, long>"
            s.launch(f"{name}(char*, char*, long*, int, long, long, long, long, bool)", x.nbytes)
        for _ in range(layers):
            layer(s, x, rng)
        loss(s, norm(s, x))
        s.overhead("Command Buffer Full", 40_000)
        s.backward()
        with s.annotation("Optimizer.step#AdamW.step"):
            adamw(s, 14 * layers)
        with s.annotation("Optimizer.zero_grad#AdamW.zero_grad"):
            s.tick(300_000)
        s.synchronize()
    return s


def layer(s: Step, x: Tensor, rng: random.Random) -> None:
    """Attention, then experts, each behind a norm and with a residual."""
    h = norm(s, x)
    q, k, v = (heads(s, lora(s, h, width)) for width in (WIDTH, WIDTH // 4, WIDTH // 4))
    h = attention(s, rotated(s, q), rotated(s, k), v)
    lora(s, h, WIDTH)
    pointwise(s, "aten::add", (x, x, 1), kernels.vectorized(kernels.add(BF16), 3, 8), "AddBackward0")
    norm(s, x)
    left = BATCH * LENGTH // 8
    for expert in range(EXPERTS):
        share = left if expert == EXPERTS - 1 else rng.randint(1, left - EXPERTS + expert + 1)
        left -= share
        routed = Tensor.of(BF16, 1, 8 * share, WIDTH)
        gate = lora(s, routed, 2 * WIDTH)
        silu = kernels.vectorized(kernels.silu(BF16), 2, 8)
        slope = kernels.vectorized(kernels.silu(BF16, backward=True), 3, 8)
        pointwise(s, "aten::silu", (gate,), silu, "SiluBackward0", ("aten::silu_backward", (gate, gate), slope))
        up = lora(s, routed, 2 * WIDTH)
        product = kernels.vectorized(kernels.binary(kernels.MUL, BF16), 3, 8)
        again = ("aten::mul", (gate, up), product)
        pointwise(s, "aten::mul", (gate, up), product, "MulBackward0", again, again)
        lora(s, gate, WIDTH)
    pointwise(s, "aten::add", (x, x, 1), kernels.vectorized(kernels.add(BF16), 3, 8), "AddBackward0")


Gradient = tuple[str, tuple, str]
"""An op of a backward: name, inputs, kernel."""


def pointwise(s: Step, name: str, inputs: tuple, kernel: str, node: str = "", *gradients: Gradient) -> None:
    """An op with one kernel, and what its backward does."""
    with s.op(name, *inputs, node=node) as backward:
        s.launch(kernel, 2 * inputs[0].nbytes)
        backward.extend(lambda g=gradient: pointwise(s, *g) for gradient in gradients)


def norm(s: Step, x: Tensor) -> Tensor:
    """RMSNorm as Hugging Face writes it: in float, an op at a time."""
    h, rows = cast(s, x, FLOAT), Tensor.of(FLOAT, *x.shape[:-1], 1)
    multiplied = ("aten::mul", (h, h), kernels.vectorized(kernels.binary(kernels.MUL, FLOAT), 3, 4))
    cubed = ("aten::pow", (rows, 3), kernels.vectorized(kernels.pow_scalar(3), 2, 4))
    square = kernels.vectorized(kernels.pow_scalar(1), 2, 4)
    pointwise(s, "aten::pow", (h, 2), square, "PowBackward0", multiplied)
    with s.op("aten::mean", h, [-1], True, None, node="MeanBackward1", grad=rows) as backward:
        s.launch(kernels.mean(FLOAT), h.nbytes, block=512)
        functor = kernels.scaled(kernels.MUL, FLOAT)
        backward.append(lambda: pointwise(s, "aten::div", (h, WIDTH), kernels.strided(functor, 2)))
    epsilon = kernels.vectorized("at::native::CUDAFunctorOnSelf_add<float>", 2, 4)
    pointwise(s, "aten::add", (rows, None, 1), epsilon, "AddBackward0")
    root = kernels.vectorized(kernels.math("rsqrt", FLOAT), 2, 4)
    pointwise(s, "aten::rsqrt", (rows,), root, "RsqrtBackward0", cubed)
    scale = kernels.strided(kernels.binary(kernels.MUL, FLOAT), 2)
    summed = ("aten::sum", (h, [-1], True, None), kernels.total(FLOAT))
    pointwise(s, "aten::mul", (h, rows), scale, "MulBackward0", multiplied, summed)
    weighted = kernels.strided(kernels.binary(kernels.MUL, BF16), 4)
    result = cast(s, h, BF16)
    again = ("aten::mul", (result, Tensor.of(BF16, WIDTH)), weighted)
    pointwise(s, "aten::mul", (result, Tensor.of(BF16, WIDTH)), weighted, "MulBackward0", again)
    return result


def cast(s: Step, x: Tensor, dtype: str) -> Tensor:
    """A copy in another type."""
    result = Tensor.of(dtype, *x.shape)
    converted(s, x, result, node="ToCopyBackward0")
    return result


def converted(s: Step, x: Tensor, y: Tensor, node: str = "") -> None:
    """The ops of a cast; its backward is a cast back."""
    functor = kernels.COPY_TO_BF16 if y.dtype == BF16 else kernels.COPY_TO_FLOAT
    kernel = kernels.vectorized(functor, 2, 8) if y.dtype == BF16 else kernels.casting(functor, 1)
    code = CODES[y.dtype]
    copied = s.op("aten::_to_copy", x, code, None, None, None, False, None, node=node)
    with s.op("aten::to", x, code, False, False, None), copied as backward:
        s.leaf("aten::empty_strided", y.shape, y.strides, code, 0, None, False)
        pointwise(s, "aten::copy_", (y, x, False), kernel)
        backward.append(lambda: converted(s, y, x))


def lora(s: Step, x: Tensor, width: int) -> Tensor:
    """A frozen linear layer and its adapter of two small ones, which runs in float."""
    y = linear(s, x, width, trained=False)
    adapted = linear(s, linear(s, cast(s, x, FLOAT), RANK), width)
    scaled = kernels.vectorized(kernels.scaled(kernels.MUL, FLOAT), 2, 4)
    again = ("aten::mul", (adapted, None), scaled)
    pointwise(s, "aten::mul", (adapted, None), scaled, "MulBackward0", again)
    both = kernels.casting(kernels.add(FLOAT), 2)
    pointwise(s, "aten::add", (adapted, y, 1), both, "AddBackward0")
    return cast(s, adapted, BF16)


def linear(s: Step, x: Tensor, width: int, trained: bool = True) -> Tensor:
    """y = x W'; backward gives the gradient of x and, if trained, of W."""
    rows, depth = x.size // x.shape[-1], x.shape[-1]
    flat, y = Tensor.of(x.dtype, rows, depth), Tensor.of(x.dtype, *x.shape[:-1], width)
    weight, out = Tensor.of(x.dtype, width, depth), Tensor.of(x.dtype, rows, width)
    with s.op("aten::linear", x, weight, None):
        turned = transpose(s, weight, node="TBackward0" if trained else "")
        with s.op("aten::matmul", x, turned):
            with s.op("aten::reshape", x, flat.shape):
                s.leaf("aten::view", x, flat.shape, node="ViewBackward0", grad=flat)
            with s.op("aten::mm", flat, turned, node="MmBackward0", grad=out) as backward:
                gemm(s, x.dtype, rows, width, depth, "tn")
                if trained:
                    backward.append(lambda: matmul(s, out.transposed(0, 1), flat, "nt"))
                backward.append(lambda: matmul(s, out, weight, "nn"))
            s.leaf("aten::_unsafe_view", out, y.shape, node="UnsafeViewBackward0", grad=y)
    return y


def matmul(s: Step, a: Tensor, b: Tensor, layout: str) -> None:
    """A matmul in a backward, which transposes one side first."""
    transpose(s, b)
    with s.op("aten::mm", a, b):
        gemm(s, a.dtype, a.shape[0], b.shape[1], a.shape[1], layout)


def gemm(s: Step, dtype: str, m: int, n: int, k: int, layout: str) -> None:
    """The kernel, or the two, of a matmul."""
    nbytes = (m * n + m * k + n * k) * kernels.BYTES[dtype]
    name = kernels.gemm(dtype, m, n, k, layout)
    if dtype == BF16:
        s.launch(name, nbytes, 2 * m * n * k, "cuLaunchKernelEx", 384)
        return
    s.call("cudaDeviceGetAttribute")
    s.launch(name, nbytes, 16 * m * n * k, "cudaLaunchKernelExC", 256)
    if "split_k" in name:
        reduce = name.replace("execute_split_k_kernel", "execute_split_k_reduce_kernel")
        s.launch(reduce, m * n * 4, call="cudaLaunchKernelExC", block=256)


def transpose(s: Step, x: Tensor, node: str = "") -> Tensor:
    """`x.t()`, which is three ops and no work."""
    turned = x.transposed(0, 1)
    with s.op("aten::t", x, node=node) as backward, s.op("aten::transpose", x, 0, 1):
        s.leaf("aten::as_strided", x, turned.shape, turned.strides, None)
        backward.append(lambda: s.leaf("aten::t", turned))
    return turned


def heads(s: Step, x: Tensor) -> Tensor:
    """(batch, length, width) to (batch, heads, length, head)."""
    split = Tensor.of(x.dtype, *x.shape[:2], x.shape[2] // HEAD, HEAD)
    s.leaf("aten::view", x, split.shape, node="ViewBackward0", grad=split)
    turned = split.transposed(1, 2)
    with s.op("aten::transpose", split, 1, 2, node="TransposeBackward0", grad=turned):
        s.leaf("aten::as_strided", split, turned.shape, turned.strides, None)
    return turned


def rotated(s: Step, x: Tensor) -> Tensor:
    """Rotary embedding: x cos + rotate(x) sin."""
    angle = Tensor.of(BF16, BATCH, 1, LENGTH, HEAD)
    half = Tensor(BF16, (*x.shape[:-1], HEAD // 2), x.strides)
    turn = kernels.strided(kernels.binary(kernels.MUL, BF16), 4)
    again = ("aten::mul", (x, angle), turn)
    pointwise(s, "aten::mul", (x, angle), turn, "MulBackward0", again)
    for begin, end in ((0, HEAD // 2), (HEAD // 2, 2**63 - 1)):
        with s.op("aten::slice", x, 3, begin, end, 1, node="SliceBackward0", grad=half):
            s.leaf("aten::as_strided", x, half.shape, half.strides, begin)
    negated = kernels.strided(kernels.math("neg", BF16), 4)
    pointwise(s, "aten::neg", (half,), negated, "NegBackward0", ("aten::neg", (half,), negated))
    with s.op("aten::cat", [half, half], -1, node="CatBackward0", grad=x) as backward:
        s.launch(kernels.concatenate(), 2 * x.nbytes)
        backward.append(lambda: s.leaf("aten::narrow", x, -1, 0, HEAD // 2))
    pointwise(s, "aten::mul", (x, angle), turn, "MulBackward0", again)
    pointwise(s, "aten::add", (x, x, 1), kernels.strided(kernels.add(BF16), 4), "AddBackward0")
    return x


def attention(s: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scaled dot product attention, by cuDNN."""
    flops, nbytes = 4 * q.size * LENGTH, 2 * q.nbytes + k.nbytes + v.nbytes
    score = Tensor.of(FLOAT, BATCH, HEADS, LENGTH, 1)

    def gradients() -> None:
        with s.op("aten::_scaled_dot_product_cudnn_attention_backward", q, q, k, v, q, score):
            for empty in (q, k, v):
                s.leaf("aten::empty_like", empty, None, None, None, None, None)
            s.copy("Memset (Device)", score.nbytes, "cudaMemsetAsync")
            s.launch(kernels.attention("bprop", HEAD), 2 * nbytes, 5 * flops // 2, "cuLaunchKernelEx")

    with s.op("aten::scaled_dot_product_attention", q, k, v, None, 0.0, True, 0.125, True):
        node, arguments = "ScaledDotProductCudnnAttentionBackward0", (None, True, 0.0, True, False, 0.125)
        with s.op("aten::_scaled_dot_product_cudnn_attention", q, k, v, *arguments, node=node) as backward:
            s.call("cudaStreamIsCapturing")
            s.leaf("aten::empty", score.shape, 6, 0, None, None, None)
            s.copy("Memset (Device)", 4, "cudaMemsetAsync")
            s.launch(kernels.attention("fprop", HEAD), nbytes, flops, "cuLaunchKernelEx")
            backward.append(gradients)
    return Tensor.of(BF16, BATCH, LENGTH, WIDTH)


def loss(s: Step, x: Tensor) -> None:
    """Logits, and the cross-entropy of predicting the next token."""
    logits = cast(s, linear(s, x, VOCABULARY, trained=False), FLOAT)
    flat = Tensor.of(FLOAT, BATCH * LENGTH, VOCABULARY)
    space = "at::native::(anonymous namespace)"
    forward = f"void {space}::cunn_SoftMaxForward<4, float, float, float, {space}::LogSoftMaxForwardEpilogue>"
    backward = f"void {space}::cunn_SoftMaxBackward<4, float, float, float, {space}::LogSoftMaxBackwardEpilogue>"
    gradient = (
        "aten::_log_softmax_backward_data",
        (flat, flat, 1, 6),
        f"{backward}(float*, float const*, long)",
    )
    s.leaf("aten::view", logits, flat.shape, node="ViewBackward0", grad=flat)
    forward = f"{forward}(float*, float const*, int)"
    pointwise(s, "aten::_log_softmax", (flat, 1, False), forward, "LogSoftmaxBackward0", gradient)
    picked = f"void {space}::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(float*, float*, long)"
    filled = ("aten::fill_", (flat, 0), kernels.vectorized("at::native::FillFunctor<float>", 1, 4))
    pointwise(s, "aten::nll_loss_forward", (flat, None, 1, -100), picked, "NllLossBackward0", filled)


def adamw(s: Step, parameters: int) -> None:
    """AdamW over all parameters at once, after a look at each one's step count."""
    count = Tensor.of(FLOAT)
    for _ in range(parameters):
        with s.op("aten::item", count):
            s.leaf("aten::_local_scalar_dense", count)
    gradients = [Tensor.of(FLOAT, RANK, WIDTH)] * min(parameters, 16)
    nbytes = parameters * RANK * WIDTH * 4
    for name, depth, functor in (
        ("aten::_foreach_mul_", 1, "BinaryOpScalarFunctor<float, 1, 1, 0>, std::multiplies<float>"),
        ("aten::_foreach_lerp_", 2, "TernaryOpScalarFunctor<float, 2, 2, 0>, at::native::LerpFunctor<float>"),
        ("aten::_foreach_addcmul_", 3, "PointwiseOpScalarFunctor<float, 3, 3, 0>, std::multiplies<float>"),
        ("aten::_foreach_sqrt", 2, "UnaryOpFunctor<float, 2, 1, 1>, at::native::Sqrt<float>"),
        ("aten::_foreach_div_", 1, "BinaryOpScalarListFunctor<float, 1, 1, 0>, std::divides<float>"),
        ("aten::_foreach_add_", 1, "BinaryOpScalarFunctor<float, 1, 1, 0>, std::plus<float>"),
        ("aten::_foreach_addcdiv_", 3, "PointwiseOpScalarListFunctor<float, 3, 3, 0>, std::divides<float>"),
    ):
        with s.op(name, gradients, 0.9):
            for _ in range(1 + parameters // 110):
                s.launch(kernels.multi_tensor(depth, functor), depth * nbytes, block=512)
