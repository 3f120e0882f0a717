//! Tests of every finished kernel: accepted by NVIDIA's assembler, round-trips, matches its
//! documentation. Listings are in `listings/`; `FERCUDA_BLESS=1` rewrites them.

#[path = "../../ptx/tests/ptxas/mod.rs"]
mod ptxas;

use std::path::Path;

use fercuda_ptx::ast::{Item, PtxFunction, PtxModule};
use fercuda_ptx::build::{Arch, BuildError};
use fercuda_ptx::words::ScalarType;
use fercuda_testkit::kernels::attention::{self, HeadDim, Mask};
use fercuda_testkit::kernels::gemm::{self, Tile};
use fercuda_testkit::kernels::{ArgDoc, ArgKind, KernelDesc, layernorm, q4_k, softmax, vector_add};

fn assert_listing(name: &str, module: &PtxModule) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/listings")
        .join(name);
    let text = fercuda_ptx::print(module);
    if std::env::var_os("FERCUDA_BLESS").is_some() {
        std::fs::write(&path, &text).expect("the listing can be written");
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        text == wanted,
        "{name} differs from what is printed (FERCUDA_BLESS=1 accepts it):\n{text}"
    );
}

#[test]
fn vector_add_reads_like_a_kernel() {
    assert_listing(
        "vector_add.ptx",
        &vector_add::f32(Arch::SM_80).unwrap().module,
    );
}

#[test]
fn softmax_reads_like_a_kernel() {
    assert_listing("softmax.ptx", &softmax::f32(Arch::SM_80).unwrap().module);
}

#[test]
fn q4_k_reads_like_a_kernel() {
    assert_listing(
        "q4_k.ptx",
        &q4_k::dequantize_f32(Arch::SM_80).unwrap().module,
    );
}

struct Finished {
    entry: String,
    module: PtxModule,
    args: &'static [ArgDoc],
}

fn finished<S>(desc: Result<KernelDesc<S>, BuildError>) -> Finished {
    let KernelDesc {
        entry,
        module,
        args,
        ..
    } = desc.expect("the kernel builds");
    Finished {
        entry,
        module,
        args,
    }
}

fn every_kernel(arch: Arch) -> Vec<Finished> {
    vec![
        finished(vector_add::f32(arch)),
        finished(softmax::f32(arch)),
        finished(layernorm::f32(arch)),
        finished(q4_k::dequantize_f32(arch)),
        finished(gemm::f32(arch, Tile::Small)),
        finished(gemm::f32(arch, Tile::Large)),
        finished(attention::f32(arch, HeadDim::D32)),
        finished(attention::f32(arch, HeadDim::D64)),
        finished(attention::f32(arch, HeadDim::D128)),
    ]
}

fn entry(module: &PtxModule) -> &PtxFunction {
    let functions: Vec<_> = module
        .items
        .iter()
        .filter_map(|i| match i {
            Item::Function(f) => Some(f),
            _ => None,
        })
        .collect();
    assert_eq!(functions.len(), 1);
    functions[0]
}

#[test]
fn every_kernel_is_accepted_by_ptxas_without_a_warning() {
    let Some(ptxas) = ptxas::find() else { return };
    for arch in [Arch::SM_80, Arch::SM_90] {
        for kernel in every_kernel(arch) {
            let log = ptxas.assemble(&fercuda_ptx::print(&kernel.module), arch);
            assert!(
                !log.contains("warning"),
                "{} for {arch}:\n{log}",
                kernel.entry
            );
            assert!(
                log.contains("0 bytes spill stores, 0 bytes spill loads"),
                "{} for {arch}:\n{log}",
                kernel.entry
            );
        }
    }
}

#[test]
fn every_kernel_reads_back_equal() {
    for kernel in every_kernel(Arch::SM_80) {
        let text = fercuda_ptx::print(&kernel.module);
        let read =
            fercuda_ptx::parse(&text).unwrap_or_else(|e| panic!("{}: {e}\n{text}", kernel.entry));
        assert_eq!(fercuda_ptx::print(&read), text, "{}", kernel.entry);
        assert!(read == kernel.module, "{}", kernel.entry);
        assert_eq!(fercuda_ptx::check(&read), [], "{}", kernel.entry);
    }
}

#[test]
fn argument_docs_name_the_parameters_in_order() {
    for kernel in every_kernel(Arch::SM_80) {
        let f = entry(&kernel.module);
        let params: Vec<_> = f
            .params
            .iter()
            .map(|p| {
                (
                    kernel.module.symbols.name(p.name),
                    p.ty,
                    p.ptr.and_then(|a| a.align),
                )
            })
            .collect();
        let docs: Vec<_> = kernel
            .args
            .iter()
            .map(|a| match a.kind {
                ArgKind::Pointer(_, align) => (a.name, ScalarType::U64, Some(align)),
                ArgKind::Number(ty) => (a.name, ty, None),
            })
            .collect();
        assert_eq!(params, docs, "{}", kernel.entry);
        assert_eq!(kernel.module.symbols.name(f.name), kernel.entry);
    }
}

#[test]
fn launches_cover_the_shape_exactly() {
    let launch = vector_add::f32(Arch::SM_80)
        .unwrap()
        .launch(&vector_add::VectorExtents { n: 1000 })
        .unwrap();
    assert_eq!((launch.grid, launch.block), ([4, 1, 1], [256, 1, 1]));

    let rows = |rows, cols| {
        softmax::f32(Arch::SM_80)
            .unwrap()
            .launch(&softmax::RowExtents { rows, cols })
            .unwrap()
    };
    assert_eq!((rows(9, 1).grid, rows(9, 1).block), ([2, 1, 1], [32, 8, 1]));
    assert_eq!(
        (rows(9, 513).grid, rows(9, 513).block),
        ([9, 1, 1], [160, 1, 1])
    );
    assert_eq!(rows(1, 1 << 20).block, [512, 1, 1]);
    assert_eq!(rows(5, 0).grid, [0, 1, 1], "nothing to do");

    let shape = gemm::GemmExtents {
        m: 129,
        n: 64,
        k: 7,
    };
    let launch = gemm::f32(Arch::SM_80, Tile::Small)
        .unwrap()
        .launch(&shape)
        .unwrap();
    assert_eq!((launch.grid, launch.block), ([3, 1, 1], [256, 1, 1]));
    assert_eq!(Tile::for_shape(&shape, 132), Tile::Small);
    assert_eq!(
        Tile::for_shape(
            &gemm::GemmExtents {
                m: 4096,
                n: 4096,
                k: 1
            },
            132
        ),
        Tile::Large
    );

    let launch = attention::f32(Arch::SM_80, HeadDim::D64)
        .unwrap()
        .launch(&attention::AttentionExtents {
            heads: 6,
            q_len: 65,
            kv_len: 3,
        })
        .unwrap();
    assert_eq!(launch.grid, [12, 1, 1]);
    assert!(launch.dynamic_shared_bytes > 48 * 1024 && launch.dynamic_shared_bytes <= 99 * 1024);
}

#[test]
fn masks_say_how_many_keys_a_query_sees() {
    let shape = attention::AttentionExtents {
        heads: 1,
        q_len: 4,
        kv_len: 10,
    };
    assert_eq!(shape.visible(Mask::None), 10);
    assert_eq!(shape.visible(Mask::CausalFromStart), 1);
    assert_eq!(
        shape.visible(Mask::CausalToEnd),
        7,
        "the first of four queries sees all but the last three of ten"
    );
}

#[test]
fn errors_of_impossible_shapes_name_the_excess() {
    let error = attention::f32(Arch::SM_80, HeadDim::D32)
        .unwrap()
        .launch(&attention::AttentionExtents {
            heads: 1 << 40,
            q_len: 64,
            kv_len: 1,
        })
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "attention: blocks of 64 queries over all heads is 1099511627776, at most 2147483647 can be had\n\
         try: split the problem over several launches"
    );
}

#[test]
fn kernels_that_need_a_later_architecture_say_so() {
    let error = softmax::f32(Arch::new(75)).map(|d| d.entry).unwrap_err();
    assert_eq!(
        error.to_string(),
        "kernel `softmax`: max.NaN.f32 needs sm_80, the target is sm_75"
    );
}
