"""Names from traces are escaped and shortened, and C++ is made readable."""

from __future__ import annotations

import pytest
from helpers.make_diagnosis import HOSTILE, MUL
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from gpuprof.report.kernel_names import readable_kernel
from gpuprof.report.names import escape, shorten, shorten_kernel, shown, shown_kernel
from gpuprof.report.numbers import amount, count, duration, duration_range, share

COPY = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::"
    "direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#12}::"
    "operator()() const::{lambda(c10::BFloat16)#1}>(at::TensorIteratorBase&, at::native::"
    "direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3})::{lambda(int)#1}>(int, int)"
)
FOREACH = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "TensorListScalarListMetadata<float, 3>, at::native::(anonymous namespace)::PointwiseOpScalarListFunctor"
    "<float, 3, 3, 0>, std::divides<float> >(at::native::(anonymous namespace)::TensorListMetadata<3>)"
)


@pytest.mark.parametrize(
    ("name", "readable"),
    [
        (MUL, "vectorized_elementwise_kernel<MulFunctor, bf16>"),
        (COPY, "elementwise_kernel<direct_copy, bf16>"),
        (FOREACH, "multi_tensor_apply_kernel<PointwiseOpScalarListFunctor, divides, fp32>"),
        (
            "void (anonymous namespace)::softmax_warp_forward<float, 10, false>(float*)",
            "softmax_warp_forward<fp32>",
        ),
        (
            "void cutlass::Kernel2<cutlass_80_tensorop_bf16_gemm_tn>(Params)",
            "cutlass_80_tensorop_bf16_gemm_tn",
        ),
        ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, 7>(P)", "gemvx::kernel"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(Args<4096ul>)", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
        ("_ZN7cutlass6KernelINS_4gemm6kernel4GemmINS1_EEEEvv", "Gemm"),
        ("_ZN2ck16tensor_operation11kernel_gemmINS_4IdEEEvv", "kernel_gemm"),
        (
            "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type"
            " vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long, float, int, int)",
            "fused_add_rms_norm_kernel<bf16>",
        ),
        ("std::enable_if<((4)<(8)), void>::type f<__half>(int)", "f<fp16>"),
        ("_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Rmsnorm2dFwdPipelineOnePassEEEEv", "Rmsnorm2dFwd"),
        ("void ck_tile::kentry<256, 2, ck_tile::GemmKernel<ck_tile::Tile<1> > >(Args)", "GemmKernel"),
        ("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT", "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"),
        ("triton_poi_fused__to_copy_1", "triton_poi_fused__to_copy_1"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)"),
        ("Memset (Device)", "Memset (Device)"),
        ("", ""),
        ("<", "<"),
        ("_Z", "_Z"),
        ("_ZN99999foo", "_ZN99999foo"),
    ],
)
def test_kernel_names_are_reduced_to_what_matters(name, readable):
    assert readable_kernel(name) == readable


@given(st.text(alphabet="ab:<>(){}, _Z4N\x1b\u202e", max_size=60))
def test_no_name_is_too_odd(name):
    assert isinstance(readable_kernel(name), str)
    assert cell_len(shown_kernel(name, 20)) <= 20


def test_deep_templates_do_not_overflow_the_stack():
    assert readable_kernel("void f<" + "gpu_kernel_impl<" * 20_000 + ">" * 20_001 + "(int)")


def test_what_does_not_show_is_escaped():
    assert escape("a\x1b[31m\u202eb\u200b\n\ud800\U000e0041") == r"a\x1b[31m\u202eb\u200b\x0a\ud800\U000e0041"
    assert escape("größe · 核 · नमस्ते") == "größe · 核 · नमस्ते"
    assert escape("e" + "\u0301" * 5) == "é\u0301\u0301" + r"\u0301\u0301"


@given(st.text(max_size=200))
def test_escaped_text_is_one_printable_line(text):
    assert len(escape(text).splitlines()) <= 1
    assert all(char.isprintable() or char.isspace() for char in escape(text))


@given(st.text(max_size=50), st.integers(0, 30))
def test_shortened_text_fits(text, width):
    assert cell_len(shorten(text, width)) <= max(width, 0)


def test_both_ends_stay():
    assert shorten("abcdefghij", 7) == "abc…hij"
    assert shorten("核核核核核", 6) == "核…核"
    assert shorten("abc", 3) == "abc"
    assert shown(None) == "–"
    assert len(shown("x" * 5_000_000, 30)) == 30
    assert "\x1b" not in shown(HOSTILE, 30)


def test_functors_outlive_the_kernels_own_name():
    name = "vectorized_elementwise_kernel<MulFunctor, bf16>"
    assert shorten_kernel(name, 30) == "vector…ernel<MulFunctor, bf16>"
    assert shorten_kernel("kernel<a_very_long_functor_indeed>", 12) == "kernel…deed>"


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ms"),
        (7, "7 ns"),
        (999, "999 ns"),
        (999.7, "1.0 µs"),
        (1_890, "1.9 µs"),
        (9_960, "10 µs"),
        (999_700, "1.0 ms"),
        (41_000_000, "41 ms"),
        (167_800_000, "168 ms"),
        (1_240_000_000, "1.2 s"),
        (4_321_000_000_000, "4,321 s"),
        (-2_000_000, "−2.0 ms"),
    ],
)
def test_times_keep_two_or_three_digits(ns, text):
    assert duration(ns) == text


def test_ranges_name_the_unit_once():
    assert duration_range(18e6, 176e6) == "18–176 ms"
    assert duration_range(900e3, 9e6) == "900 µs – 9.0 ms"
    assert duration_range(5e6, 5e6) == "5.0 ms"


def test_shares_never_round_to_nothing_or_everything():
    assert [share(n, 1000) for n in (0, 1, 140, 999, 1000)] == ["0 %", "<1 %", "14 %", ">99 %", "100 %"]
    assert share(1, 0) == "–"


def test_counts():
    assert (count(5276), count(2.25), count(3.0)) == ("5,276", "2.2", "3")
    assert (amount(1, "gap"), amount(2, "gap"), amount(0.5, "gap")) == ("1 gap", "2 gaps", "0.5 gaps")
