//! Beginning and end of checks, of a launch and of its blocks.

use std::sync::Arc;

use super::super::ctx::{BoundKernel, Ctx, LaunchRun};
use super::super::launch::LaunchSpec;
use super::super::program::access_kind;
use super::launch::LaunchCheck;
use crate::check::shared::SharedShadow;
use crate::check::{BlockSegments, CheckContext, LaunchNaming, Shadow};
use crate::report::{AccessKind, ExecutionPoint};

/// Begins the checks of a launch of `total` blocks, if they are on.
pub(crate) fn begin(
    spec: &LaunchSpec,
    prepared: &Arc<BoundKernel>,
    total: u64,
) -> Option<LaunchCheck> {
    spec.checks.as_ref()?;
    let identity = Arc::new(LaunchNames {
        prepared: prepared.clone(),
        grid: spec.grid,
        block: spec.block,
    });
    LaunchCheck::new(spec, identity, total)
}

/// The state of a launch's checks, if they are on.
pub(super) fn shadow(run: &LaunchRun) -> Option<(&Shadow, &LaunchCheck, &CheckContext)> {
    Some((
        run.spec.space.shadow()?,
        run.checked.as_ref()?,
        run.spec.checks.as_ref()?,
    ))
}

/// The data that resolves a thread's position in reports after the launch.
#[derive(Debug)]
struct LaunchNames {
    prepared: Arc<BoundKernel>,
    grid: [u32; 3],
    block: [u32; 3],
}

impl LaunchNaming for LaunchNames {
    fn place(&self, block: u32, thread: u32, site: u32) -> (ExecutionPoint, AccessKind) {
        let index = |n: u64, d: [u32; 3]| {
            let (x, y) = (u64::from(d[0]), u64::from(d[1]));
            [(n % x) as u32, (n / x % y) as u32, (n / x / y) as u32]
        };
        let (block, thread) = (
            index(u64::from(block), self.grid),
            index(u64::from(thread), self.block),
        );
        let p = match self.prepared.site_pc(site) {
            Some(pc) => {
                let (function, pc) = self.prepared.locate(pc);
                self.prepared.code.place(function, pc, block, thread)
            }
            None => self.prepared.code.somewhere(block, thread),
        };
        let kind = access_kind(&p.opcode);
        (p, kind)
    }
}

pub(crate) fn start_block(ctx: &mut Ctx<'_>) {
    if ctx.run.checked.is_none() {
        return;
    }
    let (bytes, warps) = (ctx.block.shared.len(), ctx.block.warps.len());
    let turns = ctx.run.turns.as_ref();
    ctx.block.log = turns
        .is_some_and(|t| !t.has(ctx.block.linear))
        .then(Box::default);
    ctx.block.segments = BlockSegments::default();
    ctx.block.mbarriers.clear();
    ctx.block.asyncs = None;
    ctx.block.sources = 0..0;
    let block = ctx.block.linear as u32;
    ctx.block
        .shadow
        .get_or_insert_with(Box::<SharedShadow>::default)
        .start(block, bytes, warps);
}

/// Gives back what a block's checks hold besides its log.
pub(crate) fn end_block(ctx: &mut Ctx<'_>) {
    ctx.block.segments = BlockSegments::default();
}
