//! A device's memory without a device, and launches on it.

use std::sync::Arc;

use fercuda_softgpu::check::{CheckContext, CheckOptions};
use fercuda_softgpu::exec::{
    CompileOptions, DeviceInfo, Executor, LaunchSpec, LaunchStats, Loaded, compile,
};
use fercuda_softgpu::mem::{AddressSpace, AllocKind, DriverCallSite, GRANULE};
use fercuda_softgpu::order::{ActorId, OpKind, Order};
use fercuda_softgpu::report::FindingSink;

/// What fails here is shown and ends the program.
pub(crate) type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Memory, of which one allocation is in use, and what checks need.
pub(crate) struct Machine {
    pub(crate) space: Arc<AddressSpace>,
    /// Where the allocation begins.
    pub(crate) at: u64,
    order: Arc<Order>,
    sink: Arc<FindingSink>,
}

impl Machine {
    /// With an allocation of at least `len` bytes.
    pub(crate) fn new(checks: bool, len: u64) -> Outcome<Self> {
        let len = len.next_multiple_of(GRANULE);
        let space = AddressSpace::new(64 * GRANULE + len, checks)?;
        let (at, backing) = space.map_new(len, 1)?;
        std::mem::forget(backing);
        space.add(
            at,
            len,
            AllocKind::Device,
            0,
            None,
            DriverCallSite::default(),
            true,
            None,
        );
        Ok(Machine {
            space,
            at,
            order: Arc::new(Order::new()),
            sink: Arc::new(FindingSink::new()),
        })
    }

    pub(crate) fn run(
        &self,
        executor: &Executor,
        loaded: &Arc<Loaded>,
        grid: [u32; 3],
        block: [u32; 3],
        params: &[u8],
    ) -> Outcome<LaunchStats> {
        let checks = self.space.shadow().map(|_| CheckContext {
            op: self.order.begin(ActorId::HOST, OpKind::Call("launch")),
            order: self.order.clone(),
            sink: self.sink.clone(),
            options: CheckOptions::default(),
        });
        let spec = LaunchSpec {
            grid,
            block,
            cluster: [1; 3],
            explicit_cluster: false,
            dynamic_shared_bytes: 0,
            params: params.to_vec(),
            device: DeviceInfo::default(),
            cooperative: false,
            space: self.space.clone(),
            checks,
            watchdog: None,
            late_copies: false,
            print: Arc::new(|text| print!("{text}")),
            heap: None,
            bindings: Default::default(),
            cancel: None,
        };
        let stats = executor.run(loaded, 0, &spec)?;
        if let Some(f) = self.sink.take().first() {
            return Err(f.to_string().into());
        }
        Ok(stats)
    }
}

/// A module of PTX.
pub(crate) fn load(text: &str, options: &CompileOptions) -> Outcome<Arc<Loaded>> {
    let module = fercuda_ptx::parse(text)?;
    Ok(Loaded::new(compile(&module, options)?, Default::default())?)
}
