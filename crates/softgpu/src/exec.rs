//! Executing PTX: warps of 32 lanes over decoded code.
//!
//! [`compile`] turns a module into a [`CompiledModule`], once; [`Loaded`] gives its variables their
//! addresses; [`Executor::run`] runs a grid.

mod access;
mod alu_float;
mod alu_int;
mod arity;
mod assign;
mod atomics;
mod barrier;
mod barrier_report;
mod basics;
mod binding;
mod block;
mod builtins;
mod bulk;
mod bulk_peers;
mod bulk_places;
mod bulk_reduce;
mod bulk_tensor;
mod cfg;
mod check_order;
mod checks;
mod cluster;
mod cluster_address;
mod cluster_async;
mod cluster_barrier;
mod cluster_mbarrier;
mod cluster_turns;
mod compare;
mod control;
mod convert;
mod copies;
mod ctx;
mod data;
mod dot;
mod fetch;
mod fixed_rows;
mod grid;
mod halves;
mod hang;
mod image;
mod image_lanes;
mod interface;
mod kernel_heap;
mod landing;
mod lanes;
mod launch;
mod layout;
mod lower;
mod matrix;
mod mbarrier;
mod mbarrier_state;
mod memory;
mod mma;
mod mma_double;
mod mma_quad;
mod mma_sparse;
mod mma_types;
mod mma_vectors;
mod multimem;
mod ordering;
mod parameters;
mod pressure;
mod printf;
mod product;
mod program;
mod propagate;
mod register_pool;
mod registers;
mod rendezvous;
mod rmw;
mod runs;
mod sampling;
mod scalar;
mod special;
mod stack;
mod state;
mod surface;
mod sync;
mod tags;
mod tensor_box;
mod tensormap;
mod texel;
mod video;
mod warp;
mod wgmma;
mod wgmma_layout;
mod wgmma_narrow;
mod wgmma_registers;
mod wgmma_sums;
mod width;
mod wmma;

use std::sync::Arc;

use crate::report::{Fault, FaultKind};

pub use binding::{
    AddressMode, BindingTable, ImageBinding, ImageLevel, LaunchBindings, Sampler, TexelImage,
};
pub use image::{CompileOptions, CompiledModule, Loaded, compile};
pub use interface::{
    CompileError, KernelInfo, ModuleReference, ModuleVariable, ParamLayout, ReferenceKind,
    Relocation,
};
pub use kernel_heap::KernelHeap;
pub use launch::{DeviceInfo, LaunchSpec, LaunchStats, PrintSink};
pub(crate) use pressure::BLOCK_REGISTERS;
pub use texel::{ComponentType, TexelFormat};

/// Runs launches on a set of threads.
#[derive(Debug)]
pub struct Executor {
    threads: usize,
    pool: Arc<grid::HelperPool>,
}

impl Executor {
    /// With `threads` threads in all, the caller's included (0: as many as the machine has).
    /// A checked launch that stands still otherwise is lent more.
    #[must_use]
    pub fn new(threads: usize) -> Arc<Self> {
        let threads = if threads == 0 {
            std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
        } else {
            threads
        };
        Arc::new(Executor {
            threads,
            pool: grid::HelperPool::new(threads - 1),
        })
    }

    /// Threads, the caller's included.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs kernel `kernel` of `loaded`, an index into its image's kernels, to its end on this
    /// thread, helped by idle ones.
    ///
    /// # Errors
    /// The [`Fault`] that ended it; memory is as the blocks had left it by then.
    pub fn run(
        &self,
        loaded: &Loaded,
        kernel: usize,
        spec: &LaunchSpec,
    ) -> Result<LaunchStats, Box<Fault>> {
        let illegal = |why: String| {
            Box::new(Fault {
                kind: FaultKind::IllegalInstruction(why),
                place: None,
                allocation: None,
            })
        };
        if spec.grid.contains(&0) || spec.block.contains(&0) {
            return Err(illegal("a launch of no threads".to_owned()));
        }
        let whole = |axis: usize| spec.grid[axis].checked_rem(spec.cluster[axis]) == Some(0);
        let size: u64 = spec.cluster.iter().map(|&n| u64::from(n)).product();
        if !(0..3).all(whole) || size > u64::from(cluster::MOST_BLOCKS) {
            return Err(illegal(format!("clusters of {:?} blocks", spec.cluster)));
        }
        let prepared = loaded
            .prepared(kernel, spec.checks.is_some())
            .map_err(illegal)?;
        let param_bytes = loaded.image().kernels()[kernel].param_bytes as usize;
        let mut spec = spec.clone();
        spec.params.resize(spec.params.len().max(param_bytes), 0);
        self.pool.run(spec, prepared)
    }
}
