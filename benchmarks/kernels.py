"""Names of CUDA kernels as PyTorch and cuBLAS give them: some short, some half a kilobyte of templates."""

from __future__ import annotations

BF16, FLOAT, LONG = "c10::BFloat16", "float", "long int"
BYTES = {BF16: 2, FLOAT: 4, LONG: 8}

MUL = "at::native::binary_internal::MulFunctor<float>"
COPY_TO_BF16 = "at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}"
COPY_TO_FLOAT = (
    "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const"
    "::{lambda()#7}::operator()() const::{lambda(float)#1}"
)


def math(name: str, dtype: str) -> str:
    """The functor of a unary operator, such as `rsqrt`."""
    return (
        f"at::native::{name}_kernel_cuda(at::TensorIteratorBase&)::{{lambda()#2}}::operator()() const"
        f"::{{lambda()#{9 if dtype == BF16 else 2}}}::operator()() const::{{lambda({dtype})#1}}"
    )


def pow_scalar(variant: int) -> str:
    """The functor of `x ** n`; each exponent has its own lambda."""
    return (
        "at::native::(anonymous namespace)::pow_tensor_scalar_kernel_impl<float, float>"
        f"(at::TensorIteratorBase&, float)::{{lambda(float)#{variant}}}"
    )


def silu(dtype: str, backward: bool = False) -> str:
    """The functor of SiLU or of its gradient."""
    name, arguments = ("silu_backward_kernel", f"{dtype}, {dtype}") if backward else ("silu_kernel", dtype)
    return (
        f"at::native::(anonymous namespace)::{name}(at::TensorIteratorBase&)::{{lambda()#1}}"
        f"::operator()() const::{{lambda()#6}}::operator()() const::{{lambda({arguments})#1}}"
    )


def binary(functor: str, dtype: str) -> str:
    """A binary operator on two tensors of one type."""
    return f"at::native::BinaryFunctor<{dtype}, {dtype}, {dtype}, {functor} >"


def scaled(functor: str, dtype: str) -> str:
    """A binary operator whose first operand is a number."""
    return f"at::native::AUnaryFunctor<{dtype}, {dtype}, {dtype}, {functor} >"


def add(dtype: str) -> str:
    """The functor of a sum."""
    return f"at::native::CUDAFunctor_add<{dtype}>"


def vectorized(functor: str, tensors: int, width: int) -> str:
    """An elementwise kernel on contiguous tensors, `width` elements at a time."""
    arrays = f"std::array<char*, {tensors}ul>"
    kernel = f"void at::native::vectorized_elementwise_kernel<{width}, {functor}, {arrays} >"
    return f"{kernel}(int, {functor}, {arrays})"


def strided(functor: str, width: int) -> str:
    """An elementwise kernel on tensors that are not contiguous."""
    implementation = (
        f"at::native::gpu_kernel_impl_nocast<{functor} >(at::TensorIteratorBase&, {functor} const&)::{{lambda(int)#1}}"
    )
    return f"void at::native::elementwise_kernel<128, {width}, {implementation}>(int, {implementation})"


def casting(functor: str, inputs: int) -> str:
    """An elementwise kernel that converts types on the way."""
    arrays = f"std::array<char*, {inputs + 1}ul>"
    offsets = f"TrivialOffsetCalculator<{inputs}, unsigned int>, TrivialOffsetCalculator<1, unsigned int>"
    casts = f"at::native::memory::LoadWithCast<{inputs}>, at::native::memory::StoreWithCast<1>"
    kernel = f"void at::native::unrolled_elementwise_kernel<{functor}, {arrays}, 4, {offsets}, {casts} >"
    return f"{kernel}(int, {functor}, {arrays}, {offsets}, {casts})"


def mean(dtype: str) -> str:
    """A reduction to the mean of the last dimension."""
    functor = (
        f"at::native::ReduceOp<{dtype}, at::native::MeanOps<{dtype}, {dtype}, {dtype}, {dtype}>, "
        f"unsigned int, {dtype}, 4, 4>"
    )
    return f"void at::native::reduce_kernel<512, 1, {functor} >({functor})"


def total(dtype: str) -> str:
    """A reduction to the sum."""
    functor = (
        f"at::native::ReduceOp<{dtype}, at::native::func_wrapper_t<{dtype}, at::native::sum_functor<{dtype}, "
        f"{dtype}, {dtype}>::operator()(at::TensorIterator&)::{{lambda({dtype}, {dtype})#1}}>, "
        f"unsigned int, {dtype}, 4, 4>"
    )
    return f"void at::native::reduce_kernel<512, 1, {functor} >({functor})"


def concatenate() -> str:
    """The copy behind `torch.cat` of 4-dimensional bf16 tensors."""
    space = "at::native::(anonymous namespace)"
    opaque = f"{space}::OpaqueType<2u>"
    return (
        f"void {space}::CatArrayBatchedCopy<{opaque}, unsigned int, 4, 64, 64>({opaque}*, "
        f"{space}::CatArrInputTensorMetadata<{opaque}, unsigned int, 64, 64>, "
        f"{space}::TensorSizeStride<unsigned int, 4u>, int, unsigned int)"
    )


def multi_tensor(depth: int, functor: str) -> str:
    """One kernel of a foreach optimizer, over many parameters at once."""
    space = "at::native::(anonymous namespace)"
    arguments = f"{space}::TensorListMetadata<{depth}>, {space}::{functor}, float"
    return f"void {space}::multi_tensor_apply_kernel<{arguments}>({arguments})"


def gemm(dtype: str, m: int, n: int, k: int, layout: str) -> str:
    """cuBLAS's kernel for a matmul: the tile follows the shape, so that many shapes give many names."""
    if dtype == FLOAT:
        tile = f"{32 << (m + n) // 128 % 3}x{32 << (n // 64) % 2}x8"
        split = "_split_k" if k >= 1024 else ""
        return (
            f"sm80_xmma_gemm_f32f32_f32f32_f32_{layout}_n_tilesize{tile}_stage3_warpsize1x{1 + k % 3}x1"
            f"_ffma_aligna4_alignc4_execute{split}_kernel__5x_cublas"
        )
    height, width = 64 << (n // 2048) % 3, 8 * max(1, min(32, m // 16))
    cluster = ("1x2_h", "2x1_v", "4x1_v", "2x4_h")[(m // 8 + n // 256) % 4]
    split = "_splitK" if k >= 4096 else ""
    letters = {"tn": "TNT", "nn": "NNT", "nt": "NTT"}[layout]
    return f"nvjet_sm90_tst_{height}x{width}_64x{max(3, 16 - width // 16)}_{cluster}_bz{split}_{letters}"


def attention(direction: str, head: int) -> str:
    """cuDNN's flash attention: `fprop` or `bprop`."""
    knob = "knob_7_64x128" if direction == "fprop" else "knob_26_64x64"
    return f"cudnn_generated_fort_native_sdpa_sm90_flash_{direction}_wgmma_f16_{knob}x{head}_4x1x1_cga1x1x1_kernel0_0"
