//! Execution context of a worker: the block, the warp and its active lanes.
//!
//! Invariant: `trouble` is checked between two basic blocks; inside one, a failed instruction has
//! no effect and the rest of the block may still run.

use super::grid::LaunchRun;
use super::lanes::{ALL, FrameRows, MaskRow, RegisterFile};
use super::program::{FunctionCode, Inst};
use crate::check::shared::SharedShadow;
use crate::mem::Window;
use crate::report::{Access, ExecutionPoint, Fault, FaultKind};

/// Tags of generic addresses that are not global. Offsets are the low 32 bits.
pub(crate) const SHARED_TAG: u64 = 1 << 56;
pub(crate) const LOCAL_TAG: u64 = 2 << 56;
pub(crate) const PARAM_TAG: u64 = 3 << 56;
/// Addresses of functions: the tag and the function's index in its module.
pub(crate) const FUNCTION_TAG: u64 = 4 << 56;
pub(crate) const TAG_MASK: u64 = 0xff << 56;

/// Lanes of a warp that stand at the same place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Split {
    pub(crate) mask: u32,
    /// Basic block.
    pub(crate) pc: u32,
    /// Index in [`WarpState::frames`].
    pub(crate) frame: u32,
    pub(crate) state: SplitState,
    /// Has used its time slice while others wait for theirs.
    pub(crate) tired: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SplitState {
    Ready,
    /// Waits for other lanes of its warp before block `pc`.
    Parked,
    /// Stands at the barrier that ends block `pc` without all of its warp.
    AtBarrier,
    /// Has arrived at barrier `.0`.
    Barrier(u32),
    /// Barrier `.0` completed with result `.1`, still to be written.
    Passed(u32, u32),
}

/// One activation of a function.
#[derive(Debug)]
pub(crate) struct Frame {
    /// Index in [`super::program::KernelCode::functions`].
    pub(crate) function: u32,
    pub(crate) rows: FrameRows,
    pub(crate) parent: u32,
    /// Block of the parent with the call that created this frame.
    pub(crate) call_block: u32,
    pub(crate) depth: u32,
    /// Lanes still inside, or below.
    pub(crate) lanes: u32,
    pub(crate) local_base: u32,
}

/// An asynchronous copy that has not landed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PendingCopy {
    pub(crate) lane: u8,
    pub(crate) group: u32,
    pub(crate) dst: u32,
    pub(crate) src: u64,
    pub(crate) len: u32,
    pub(crate) src_len: u32,
}

/// 32 threads.
#[derive(Debug, Default)]
pub(crate) struct WarpState {
    pub(crate) index: u32,
    /// Threads that were launched.
    pub(crate) launched: u32,
    /// Threads that have not exited.
    pub(crate) live: u32,
    pub(crate) splits: Vec<Split>,
    pub(crate) frames: Vec<Option<Frame>>,
    /// Local memory: word `w` of lane `l` is `w * 32 + l`.
    pub(crate) local: Vec<u32>,
    /// Initialised bytes of each word, with checks.
    pub(crate) local_init: Vec<u8>,
    pub(crate) copies: Vec<PendingCopy>,
    pub(crate) groups: Vec<u32>,
}

/// A hardware barrier.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Barrier {
    pub(crate) arrived: u32,
    /// 0: every live thread.
    pub(crate) expected: u32,
    pub(crate) popc: u32,
    pub(crate) and: bool,
    pub(crate) or: bool,
}

/// A block in execution. Can be suspended and resumed.
#[derive(Debug, Default)]
pub(crate) struct BlockState {
    pub(crate) index: [u32; 3],
    pub(crate) linear: u64,
    pub(crate) warps: Vec<WarpState>,
    pub(crate) shared: Vec<u8>,
    pub(crate) barriers: Vec<Barrier>,
    pub(crate) shadow: Option<Box<SharedShadow>>,
    pub(crate) next_warp: usize,
    /// This block's segment in the shadow of global memory.
    pub(crate) segment: u32,
    pub(crate) clock: crate::check::clock::BlockClock,
    pub(crate) reported_exit: bool,
    /// The log of unchecked accesses; `None` if this block has the turn, or if all accesses are
    /// checked immediately.
    pub(crate) log: Option<Box<super::check_order::AccessLog>>,
}

/// See the module.
pub(crate) struct Ctx<'l> {
    pub(crate) rows: RegisterFile,
    pub(crate) mask: u32,
    pub(crate) mask_row: MaskRow,
    pub(crate) run: &'l LaunchRun,
    pub(crate) code: &'l FunctionCode,
    pub(crate) block: Box<BlockState>,
    /// Warp in hand.
    pub(crate) warp: usize,
    pub(crate) local_base: u32,
    pub(crate) frame: u32,
    pub(crate) read_window: Window,
    pub(crate) write_window: Window,
    pub(crate) trouble: Option<Box<Fault>>,
    /// Atomics, volatile and acquiring loads since the last check.
    pub(crate) waits: u32,
    /// Whether lanes have executed `nanosleep` since the last check.
    pub(crate) napped: bool,
    /// Whether a block yields because all its lanes sleep, or wait for sleeping ones.
    pub(crate) idle: bool,
    pub(crate) instructions: u64,
    pub(crate) spare_frames: Vec<FrameRows>,
}

impl<'l> Ctx<'l> {
    pub(crate) fn new(run: &'l LaunchRun) -> Self {
        Ctx {
            rows: RegisterFile::unbound(),
            mask: 0,
            mask_row: MaskRow::new(0),
            run,
            code: &run.code().functions[0],
            block: Box::default(),
            warp: 0,
            local_base: 0,
            frame: 0,
            read_window: Window::default(),
            write_window: Window::default(),
            trouble: None,
            waits: 0,
            napped: false,
            idle: false,
            instructions: 0,
            spare_frames: Vec::new(),
        }
    }

    pub(crate) fn set_mask(&mut self, mask: u32) {
        self.mask = mask;
        if mask != ALL {
            self.mask_row = MaskRow::new(mask);
        }
    }

    pub(crate) fn w(&mut self) -> &mut WarpState {
        &mut self.block.warps[self.warp]
    }

    /// Index of an instruction of the bound function.
    #[inline]
    pub(crate) fn pc_of(&self, i: &Inst) -> u32 {
        let at = (std::ptr::from_ref(i) as usize).wrapping_sub(self.code.insts.as_ptr() as usize);
        (at / size_of::<Inst>()) as u32
    }

    /// Where lane `lane` is, at instruction `pc` of the bound function.
    pub(crate) fn place(&self, pc: u32, lane: u32) -> ExecutionPoint {
        let function = self
            .run
            .code()
            .functions
            .iter()
            .position(|f| std::ptr::eq(f, self.code))
            .unwrap_or(0);
        self.run
            .place(function, pc, self.block.index, self.thread_of(lane))
    }

    /// Linear number of a thread in its block.
    pub(crate) fn linear_thread(&self, lane: u32) -> u32 {
        self.warp as u32 * 32 + lane
    }

    pub(crate) fn thread_of(&self, lane: u32) -> [u32; 3] {
        self.run.thread_index(self.linear_thread(lane))
    }

    /// Ends the kernel. The first trouble counts.
    #[cold]
    pub(crate) fn fail(&mut self, i: &Inst, lane: u32, kind: FaultKind) {
        if self.trouble.is_some() {
            return;
        }
        let place = Some(self.place(self.pc_of(i), lane));
        let allocation = match &kind {
            FaultKind::IllegalAddress(a) | FaultKind::Misaligned(a) => self.run.blame(a),
            _ => None,
        };
        self.trouble = Some(Box::new(Fault {
            kind,
            place,
            allocation,
        }));
    }

    #[cold]
    pub(crate) fn illegal(&mut self, i: &Inst, lane: u32, access: Access) {
        self.fail(i, lane, FaultKind::IllegalAddress(access));
    }

    #[cold]
    pub(crate) fn misaligned(&mut self, i: &Inst, lane: u32, access: Access) {
        self.fail(i, lane, FaultKind::Misaligned(access));
    }
}
