//! Tests of other projects that are not run, and why.

/// A test by pytest's name, and why it is not run.
pub(super) type NotRun = (&'static str, &'static str);

const TEXTURES: &str = "texture references, which are not in CUDA 12 and later";
const SURFACES: &str = "surface references, which are not in CUDA 12 and later";
const DEVICE_RUNTIME: &str =
    "launches from kernels, by a device library that exists as machine code only";
const MEMORY: &str = "takes more than 4 GiB of memory";

const EXPECTED: &str = "its authors expect it to fail, with any driver";
const SKIPPED: &str = "its authors leave it out, with any driver";

/// Of PyCUDA's.
pub(super) const PYCUDA: &[NotRun] = &[
    ("test/test_driver.py::TestDriver::test_2d_texture", TEXTURES),
    (
        "test/test_driver.py::TestDriver::test_multiple_2d_textures",
        TEXTURES,
    ),
    (
        "test/test_driver.py::TestDriver::test_multichannel_2d_texture",
        TEXTURES,
    ),
    (
        "test/test_driver.py::TestDriver::test_multichannel_linear_texture",
        TEXTURES,
    ),
    (
        "test/test_driver.py::TestDriver::test_2d_fp_textures",
        TEXTURES,
    ),
    (
        "test/test_driver.py::TestDriver::test_2d_fp_textures_layered",
        TEXTURES,
    ),
    (
        "test/test_driver.py::TestDriver::test_3d_fp_textures",
        TEXTURES,
    ),
    ("test/test_driver.py::TestDriver::test_3d_texture", TEXTURES),
    (
        "test/test_driver.py::TestDriver::test_fp_textures",
        TEXTURES,
    ),
    (
        "test/test_driver.py::TestDriver::test_3d_fp_surfaces",
        SURFACES,
    ),
    (
        "test/test_driver.py::TestDriver::test_2d_fp_surfaces",
        SURFACES,
    ),
    ("test/test_gpuarray.py::TestGPUArray::test_take", TEXTURES),
    (
        "test/test_gpuarray.py::TestGPUArray::test_take_put",
        TEXTURES,
    ),
    (
        "test/test_driver.py::TestDriver::test_recursive_launch",
        DEVICE_RUNTIME,
    ),
    (
        "test/test_driver.py::TestDriver::test_jit_link_module",
        DEVICE_RUNTIME,
    ),
    (
        "test/test_driver.py::TestDriver::test_register_host_memory",
        EXPECTED,
    ),
    (
        "test/test_gpuarray.py::TestGPUArray::test_binary_ops_with_unequal_dtypes[truediv-int32-int32]",
        EXPECTED,
    ),
    (
        "test/test_gpuarray.py::TestGPUArray::test_binary_ops_with_unequal_dtypes[truediv-int32-int64]",
        EXPECTED,
    ),
    (
        "test/test_gpuarray.py::TestGPUArray::test_binary_ops_with_unequal_dtypes[truediv-int64-int32]",
        EXPECTED,
    ),
    (
        "test/test_gpuarray.py::TestGPUArray::test_binary_ops_with_unequal_dtypes[truediv-int64-int64]",
        EXPECTED,
    ),
    (
        "test/test_gpuarray.py::TestGPUArray::test_sum_allocator",
        SKIPPED,
    ),
    (
        "test/test_gpuarray.py::TestGPUArray::test_dot_allocator",
        SKIPPED,
    ),
    (
        "test/test_gpuarray.py::TestGPUArray::test_curand_wrappers_8gb",
        MEMORY,
    ),
    (
        "test/test_gpuarray.py::TestGPUArray::test_curand_wrappers_16gb",
        MEMORY,
    ),
    (
        "test/test_gpuarray.py::TestGPUArray::test_big_array_elementwise",
        MEMORY,
    ),
    (
        "test/test_gpuarray.py::TestGPUArray::test_big_array_reduction",
        MEMORY,
    ),
    (
        "test/test_gpuarray.py::TestGPUArray::test_big_array_scan",
        MEMORY,
    ),
];

const HALF_REFERENCE: &str =
    "PyTorch 1.13, its reference here, has no product of f16 matrices on a processor";
const DATA: &str = "downloads a data set";
const CLANG: &str = "needs clang, for its backend for processors";
const NOT_CUDA: &str = "its authors leave it out with CUDA";
const REFERENCE: &str = "PyTorch 1.13, its reference here, has no such call or another answer; \
    fails over its CPU backend too";

/// Of tinygrad's.
pub(super) const TINYGRAD: &[NotRun] = &[
    ("test/test_ops.py::TestOps::test_gemm_fp16", HALF_REFERENCE),
    ("test/test_ops.py::TestOps::test_all_axis", REFERENCE),
    ("test/test_ops.py::TestOps::test_all_zero_axis", REFERENCE),
    ("test/test_ops.py::TestOps::test_any_axis", REFERENCE),
    ("test/test_ops.py::TestOps::test_any_zero_axis", REFERENCE),
    ("test/test_ops.py::TestOps::test_cummax", REFERENCE),
    ("test/test_ops.py::TestOps::test_linspace", REFERENCE),
    (
        "test/test_ops.py::TestOps::test_max_pool2d_padding_int",
        REFERENCE,
    ),
    (
        "test/test_ops.py::TestOps::test_max_pool2d_return_indices",
        REFERENCE,
    ),
    (
        "test/test_ops.py::TestOps::test_scaled_dot_product_attention",
        REFERENCE,
    ),
    (
        "test/test_ops.py::TestOps::test_scaled_dot_product_attention_causal",
        REFERENCE,
    ),
    (
        "test/test_ops.py::TestOps::test_scaled_dot_product_attention_gqa",
        REFERENCE,
    ),
    (
        "test/test_ops.py::TestOps::test_scaled_dot_product_attention_gqa_errors",
        REFERENCE,
    ),
    (
        "test/test_ops.py::TestOps::test_scaled_dot_product_attention_mismatch_ls",
        REFERENCE,
    ),
    ("test/test_ops.py::TestOps::test_std", REFERENCE),
    ("test/test_ops.py::TestOps::test_std_keepdim", REFERENCE),
    ("test/test_ops.py::TestOps::test_std_mean", REFERENCE),
    ("test/test_ops.py::TestOps::test_var", REFERENCE),
    ("test/test_ops.py::TestOps::test_var_keepdim", REFERENCE),
    (
        "test/test_ops.py::TestOpsUint8::test_interpolate_bilinear",
        REFERENCE,
    ),
    ("test/test_ops.py::TestOps::test_large_bs_conv", SKIPPED),
    ("test/test_ops.py::TestOps::test_large_ic_conv", SKIPPED),
    ("test/test_ops.py::TestOps::test_sd_big_conv", SKIPPED),
    ("test/test_ops.py::TestOps::test_max_nan", SKIPPED),
    ("test/test_ops.py::TestOps::test_pow_int", SKIPPED),
    ("test/test_ops.py::TestOps::test_svd", SKIPPED),
    (
        "test/test_setitem.py::TestSetitem::test_setitem_inplace_operator",
        SKIPPED,
    ),
    (
        "test/test_setitem.py::TestSetitem::test_setitem_tensor_indexing_fuzz",
        SKIPPED,
    ),
    (
        "test/test_softmax_fusion.py::TestFuse::test_attention_kernel_count",
        SKIPPED,
    ),
    (
        "test/test_softmax_fusion.py::TestFuse::test_double_gemm",
        SKIPPED,
    ),
    (
        "test/test_softmax_fusion.py::TestFuse::test_flash_attention",
        SKIPPED,
    ),
    (
        "test/test_softmax_fusion.py::TestFuse::test_fuse_argmax",
        SKIPPED,
    ),
    (
        "test/test_softmax_fusion.py::TestFuse::test_fuse_norm",
        SKIPPED,
    ),
    (
        "test/test_softmax_fusion.py::TestFuse::test_fuse_softmax",
        SKIPPED,
    ),
    (
        "test/test_softmax_fusion.py::TestFuse::test_fuse_softmax_dtype",
        SKIPPED,
    ),
    (
        "test/test_softmax_fusion.py::TestSoftmaxFusion::test_auto_softmax",
        SKIPPED,
    ),
    (
        "test/test_arange.py::TestIndexing::test_index_fused_opt",
        SKIPPED,
    ),
    (
        "test/test_assign.py::TestAssign::test_assign_changes_buffer_alt",
        SKIPPED,
    ),
    (
        "test/test_assign.py::TestAssign::test_cast_assignment",
        SKIPPED,
    ),
    (
        "test/test_assign.py::TestAssign::test_crossunder_assign",
        SKIPPED,
    ),
    (
        "test/test_assign.py::TestAssign::test_permuted_reduceop_multioutput_dual_use",
        SKIPPED,
    ),
    (
        "test/test_assign.py::TestAssign::test_permuted_reduceop_multioutput_dual_use_possible",
        SKIPPED,
    ),
    (
        "test/test_assign.py::TestAssign::test_simple_assignment_multioutput",
        SKIPPED,
    ),
    (
        "test/test_linearizer.py::TestLinearizer::test_cast_there_and_back",
        SKIPPED,
    ),
    (
        "test/test_linearizer.py::TestLinearizer::test_upcast_cse",
        SKIPPED,
    ),
    (
        "test/test_outerworld.py::TestVmap::test_vmap_gemm_grad",
        SKIPPED,
    ),
    ("test/test_pickle.py::TestPickleJIT::test_size", SKIPPED),
    (
        "test/test_rangeify.py::TestRangeifyPM::test_cross_pad_match",
        SKIPPED,
    ),
    (
        "test/test_rangeify.py::TestRangeifyPM::test_nothing_match",
        SKIPPED,
    ),
    (
        "test/test_rangeify.py::TestRangeifyPM::test_padded_permute_match",
        SKIPPED,
    ),
    (
        "test/test_rangeify.py::TestRangeifyPM::test_padded_permute_reshape_match",
        SKIPPED,
    ),
    (
        "test/test_rangeify.py::TestRangeifyPM::test_padded_reshape_match",
        SKIPPED,
    ),
    (
        "test/test_rangeify.py::TestRangeifyPM::test_permute_reshape_match",
        SKIPPED,
    ),
    (
        "test/test_rangeify.py::TestRangeifyPM::test_reshape_match",
        SKIPPED,
    ),
    (
        "test/test_ops.py::TestOps::test_max_pool2d_unit_stride",
        NOT_CUDA,
    ),
    (
        "test/test_ops.py::TestOps::test_strided_conv2d_simple_vec",
        NOT_CUDA,
    ),
    ("test/test_tiny.py::TestTiny::test_image", NOT_CUDA),
    ("test/test_tiny.py::TestTiny::test_beam_image", NOT_CUDA),
    (
        "test/test_softmax_fusion.py::TestFuse::test_fuse_and_tc_opt",
        NOT_CUDA,
    ),
    (
        "test/test_linearizer.py::TestLinearizer::test_upcast_with_locals_cpu",
        NOT_CUDA,
    ),
    (
        "test/test_assign.py::TestAssign::test_assign_changes_realized_alt",
        EXPECTED,
    ),
    (
        "test/test_linearizer.py::TestLinearizer::test_cast_back_and_there",
        EXPECTED,
    ),
    (
        "test/test_outerworld_range.py::TestOuterworldRange::test_model_bound_range",
        EXPECTED,
    ),
    (
        "test/test_outerworld_range.py::TestOuterworldRange::test_model_scheduled_variable",
        EXPECTED,
    ),
    (
        "test/test_outerworld_range.py::TestOuterworldRange::test_model_scheduled_variable_setitem",
        EXPECTED,
    ),
    ("test/test_arange.py::TestIndexing::test_index_mnist", DATA),
    (
        "test/test_arange.py::TestIndexing::test_index_mnist_opt",
        DATA,
    ),
    (
        "test/test_arange.py::TestIndexing::test_index_mnist_opt_split",
        DATA,
    ),
    (
        "test/test_arange.py::TestIndexing::test_index_mnist_split",
        DATA,
    ),
    (
        "test/test_custom_kernel.py::TestCustomKernel::test_gemm_multi",
        CLANG,
    ),
    (
        "test/test_custom_kernel.py::TestCustomKernel::test_simple_sharded",
        CLANG,
    ),
    (
        "test/test_pickle.py::TestPickle::test_pickle_buffer_view",
        CLANG,
    ),
];

const OPENCV: &str = "needs OpenCV";
const NO_DEVICE: &str = "starts no device";
const PICTURE: &str = "needs a picture that its wheel does not have";
const CUSPARSE: &str = "needs cuSPARSE, which embeds NVIDIA's runtime library";
const NO_TEXTURES: &str = "its backend for CUDA has no textures";
const SLOW: &str = "takes minutes for a frame on the software device";
const PROFILE: &str = "prints how long its kernels took, and has nothing else to compare";

/// Of Taichi's samples.
pub(super) const TAICHI: &[NotRun] = &[
    (
        "projects/test_taichi.py::test_sample[algorithm/circle-packing/circle_packing_image]",
        OPENCV,
    ),
    (
        "projects/test_taichi.py::test_sample[real_func/rendering/taichi_ngp]",
        OPENCV,
    ),
    (
        "projects/test_taichi.py::test_sample[rendering/taichi_ngp]",
        OPENCV,
    ),
    (
        "projects/test_taichi.py::test_sample[features/gui/gui_widgets]",
        NO_DEVICE,
    ),
    (
        "projects/test_taichi.py::test_sample[features/gui/keyboard]",
        NO_DEVICE,
    ),
    (
        "projects/test_taichi.py::test_sample[features/io/export_mesh]",
        NO_DEVICE,
    ),
    ("projects/test_taichi.py::test_sample[patterns]", NO_DEVICE),
    (
        "projects/test_taichi.py::test_sample[features/io/export_videos]",
        PICTURE,
    ),
    (
        "projects/test_taichi.py::test_sample[simulation/implicit_fem]",
        CUSPARSE,
    ),
    (
        "projects/test_taichi.py::test_sample[simulation/implicit_mass_spring]",
        CUSPARSE,
    ),
    (
        "projects/test_taichi.py::test_sample[graph/texture_graph]",
        NO_TEXTURES,
    ),
    (
        "projects/test_taichi.py::test_sample[rendering/simple_texture]",
        NO_TEXTURES,
    ),
    (
        "projects/test_taichi.py::test_sample[algorithm/mgpcg_advanced]",
        PROFILE,
    ),
    (
        "projects/test_taichi.py::test_sample[rendering/sdf_renderer]",
        SLOW,
    ),
];
