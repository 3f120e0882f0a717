//! Decoded code, and the context in which its instructions execute.
//!
//! An instruction holds a function over the context, and the context leads back to the code, by
//! way of the launch: so these types stand together. Behaviours over them are in files above, by
//! family of instructions.
//!
//! Invariants: every row and predicate that an instruction, its further operands or the end of a
//! block names lies inside its function's frame or constant bank, with room for the widest row
//! behind it, and no destination is a constant: `assign` creates and verifies each operand,
//! [`FunctionCode::verify`] the instructions as a whole. `trouble` is checked between two basic
//! blocks; inside one, a failed instruction has no effect and the rest of the block may still run.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::check_order::CheckOrder;
use super::checks::LaunchCheck;
use super::launch::LaunchSpec;
use super::product::Product;
use super::program::{
    CodeBlock, Const, InstOrigin, LaneFn, LaunchValue, VariableBounds, touches_memory,
};
use super::registers::{
    ALL, FrameRows, MaskRow, PredOperand, RegisterFile, RegisterRow, RowOperand,
};
use super::state::ClusterState;
use super::state::{BlockState, WarpState};
use super::wgmma_sums::GroupProduct;
use crate::check::{CheckOptions, UNKNOWN_SITE};
use crate::lock::lock;
use crate::mem::{AllocInfo, Window};
use crate::report::{Access, ExecutionPoint, Fault, FaultKind, MemSpace};

/// Bytes of a block's shared memory that system software uses.
pub(crate) const RESERVED_SHARED_BYTES: u32 = 1024;

/// Executes one instruction for the active lanes.
///
/// # Safety
/// The instruction belongs to the function of the frame that is bound to the context, and the
/// processor has the features the handler was compiled for.
pub(crate) type Handler = for<'l> unsafe fn(&mut Ctx<'l>, &DecodedInst);

/// One instruction. A cache line.
#[repr(C, align(64))]
#[derive(Clone)]
pub(crate) struct DecodedInst {
    /// For some lanes, for all lanes.
    pub(crate) f: [Handler; 2],
    /// The same behind a guard.
    pub(crate) inner: [Handler; 2],
    pub(crate) d: RowOperand,
    pub(crate) a: RowOperand,
    pub(crate) b: RowOperand,
    pub(crate) c: RowOperand,
    pub(crate) guard: PredOperand,
    /// Flags, or the start of more operands in [`FunctionCode::ext`], or an index of a lane
    /// function.
    pub(crate) x: u32,
    pub(crate) imm: u64,
}

/// A function with registers assigned.
pub(crate) struct FunctionCode {
    pub(crate) name: Arc<str>,
    pub(crate) insts: Vec<DecodedInst>,
    pub(crate) origins: Vec<InstOrigin>,
    pub(crate) blocks: Vec<CodeBlock>,
    pub(crate) ext: Vec<u32>,
    pub(crate) lane_fns: Vec<LaneFn>,
    pub(crate) products: Vec<Product>,
    pub(crate) group_products: Vec<GroupProduct>,
    pub(crate) consts: Vec<(u32, Const)>,
    pub(crate) const_rows: u32,
    pub(crate) rows: u32,
    pub(crate) preds: u32,
    /// Formal parameters and results: (first fixed row, rows).
    pub(crate) params: Vec<(u32, u32)>,
    pub(crate) rets: Vec<(u32, u32)>,
    pub(crate) local_bytes: u32,
    /// Whether some row is read before it is written, so that frames must begin zeroed.
    pub(crate) zeroed: bool,
}

impl std::fmt::Debug for FunctionCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FunctionCode")
            .field("name", &self.name)
            .field("blocks", &self.blocks)
            .finish_non_exhaustive()
    }
}

impl FunctionCode {
    /// Checks that every operand of every instruction lies inside the frame or the constant bank.
    pub(crate) fn verify(&self) -> Result<(), String> {
        let ok = |o: RowOperand| {
            o.row()
                < if o.is_const() {
                    self.const_rows
                } else {
                    self.rows
                }
        };
        let pred_ok = |p: PredOperand| p.slot() < self.preds;
        for (n, i) in self.insts.iter().enumerate() {
            if !([i.d, i.a, i.b, i.c].into_iter().all(ok) && pred_ok(i.guard)) || i.d.is_const() {
                return Err(format!(
                    "instruction {n} of {} names a row outside its frame",
                    self.name
                ));
            }
        }
        for b in &self.blocks {
            if b.end as usize > self.insts.len() || b.start > b.end {
                return Err(format!("a block of {} lies outside its code", self.name));
            }
        }
        Ok(())
    }
}

/// A kernel with the functions it may call.
#[derive(Debug)]
pub(crate) struct KernelCode {
    pub(crate) name: Arc<str>,
    /// The kernel is the first.
    pub(crate) functions: Vec<FunctionCode>,
    /// Function of an address, by index in the module; `u32::MAX` if absent.
    pub(crate) by_index: Vec<u32>,
    pub(crate) opcodes: Vec<Arc<str>>,
    pub(crate) files: Vec<Arc<str>>,
    pub(crate) shared_bytes: u32,
    /// With checks: variables of shared and local memory, by number less one.
    pub(crate) variables: Vec<VariableBounds>,
    /// Whether blocks have a means of speaking to each other, or to the outside, that has an order.
    pub(crate) communicates: bool,
    /// Whether it asks where the shared memory is that system software uses.
    pub(crate) reserves_shared: bool,
    /// Registers of a thread when it begins, if its header says it.
    pub(crate) registers_at_entry: Option<u32>,
}

/// A kernel's code with its constants, addresses included.
#[derive(Debug)]
pub(crate) struct BoundKernel {
    pub(crate) code: Arc<KernelCode>,
    /// A bank for each function.
    pub(crate) consts: Vec<Box<[RegisterRow]>>,
    /// Where each function's instructions begin when all are counted through.
    starts: Vec<u32>,
    /// Instructions that touch memory, counted through all functions; [`UNKNOWN_SITE`] the others.
    site_of: Vec<u16>,
    /// The instructions of those numbers.
    sites: Vec<u32>,
}

impl BoundKernel {
    pub(crate) fn new(
        code: Arc<KernelCode>,
        addresses: &FxHashMap<Arc<str>, u64>,
    ) -> Result<Self, String> {
        let mut consts = Vec::new();
        let mut starts = Vec::new();
        let mut at = 0;
        for f in &code.functions {
            starts.push(at);
            at += f.origins.len() as u32;
            let mut bank = vec![RegisterRow::ZERO; f.const_rows as usize + 4].into_boxed_slice();
            for (row, c) in &f.consts {
                let value = match c {
                    Const::B32(v) => u64::from(*v) << 32 | u64::from(*v),
                    Const::B64(v) => *v,
                    // The launch has a copy of the bank, with its values.
                    Const::Launch(_) => 0,
                    Const::Address { name, addend } => addresses
                        .get(name)
                        .ok_or_else(|| format!("variable `{name}` has no address"))?
                        .wrapping_add(*addend as u64),
                };
                fill(&mut bank, *row, c.rows(), value);
            }
            consts.push(bank);
        }
        let (mut site_of, mut sites) = (Vec::new(), Vec::new());
        for (pc, origin) in code.functions.iter().flat_map(|f| &f.origins).enumerate() {
            let touches = code
                .opcodes
                .get(origin.opcode as usize)
                .is_some_and(|opcode| touches_memory(opcode));
            if touches && sites.len() < UNKNOWN_SITE as usize {
                site_of.push(sites.len() as u16);
                sites.push(pc as u32);
            } else {
                site_of.push(UNKNOWN_SITE as u16);
            }
        }
        Ok(BoundKernel {
            code,
            consts,
            starts,
            site_of,
            sites,
        })
    }

    /// The number among those that touch memory of an instruction counted through all functions.
    #[inline(always)]
    pub(crate) fn site(&self, pc: u32) -> u32 {
        let site = self.site_of.get(pc as usize);
        site.map_or(UNKNOWN_SITE, |&s| u32::from(s))
    }

    /// The instruction of such a number; `None` if it is one of too many.
    pub(crate) fn site_pc(&self, site: u32) -> Option<u32> {
        self.sites.get(site as usize).copied()
    }

    /// One number for an instruction of any function.
    pub(crate) fn global_pc(&self, f: &FunctionCode, pc: u32) -> u32 {
        let n = self
            .code
            .functions
            .iter()
            .position(|g| std::ptr::eq(f, g))
            .unwrap_or(0);
        self.starts[n] + pc
    }

    /// The function and instruction of such a number.
    pub(crate) fn locate(&self, pc: u32) -> (usize, u32) {
        let n = self.starts.partition_point(|&s| s <= pc).saturating_sub(1);
        (n, pc - self.starts[n])
    }
}

impl KernelCode {
    /// `thread` of `block`, at an instruction that is not known.
    pub(crate) fn somewhere(&self, block: [u32; 3], thread: [u32; 3]) -> ExecutionPoint {
        ExecutionPoint {
            kernel: self.name.clone(),
            function: None,
            ptx_line: 0,
            opcode: "".into(),
            source: None,
            inlined: None,
            block,
            thread,
        }
    }

    /// Where `thread` of `block` is, at instruction `pc` of `function`.
    pub(crate) fn place(
        &self,
        function: usize,
        pc: u32,
        block: [u32; 3],
        thread: [u32; 3],
    ) -> ExecutionPoint {
        let f = &self.functions[function];
        let origin = f.origins.get(pc as usize).copied().unwrap_or_default();
        let source = (origin.file > 0)
            .then(|| self.files.get(origin.file as usize - 1))
            .flatten()
            .map(|file| (file.clone(), origin.source_line));
        let (file, line) = origin.library;
        let library = self.files.get(file as usize).filter(|_| line > 0);
        ExecutionPoint {
            kernel: self.name.clone(),
            function: (function != 0).then(|| f.name.clone()),
            ptx_line: origin.line,
            opcode: self
                .opcodes
                .get(origin.opcode as usize)
                .cloned()
                .unwrap_or_else(|| "".into()),
            source,
            inlined: library.map(|file| (file.clone(), line)),
            block,
            thread,
        }
    }
}

/// Fills a constant's rows with what all lanes read.
fn fill(bank: &mut [RegisterRow], row: u32, rows: u32, value: u64) {
    for row in &mut bank[row as usize..][..rows as usize] {
        for piece in row.bytes().chunks_exact_mut(8) {
            piece.copy_from_slice(&value.to_le_bytes());
        }
    }
}

/// The constants of a function with the values of a launch, where it has such.
fn launch_bank(
    code: &FunctionCode,
    bank: &[RegisterRow],
    spec: &LaunchSpec,
) -> Option<Box<[RegisterRow]>> {
    let mut own = None;
    for (row, c) in &code.consts {
        let Const::Launch(v) = c else {
            continue;
        };
        let value = match *v {
            LaunchValue::Parameter { at, bytes } => spec.parameter(at, bytes),
            LaunchValue::BlockSize(axis) => spec.block[axis].into(),
            LaunchValue::GridSize(axis) => spec.grid[axis].into(),
        };
        let value = if v.rows() == 1 {
            value << 32 | value
        } else {
            value
        };
        let own = own.get_or_insert_with(|| Box::from(bank));
        fill(own, *row, v.rows(), value);
    }
    own
}

/// A launch as its blocks know it.
pub(crate) struct LaunchRun {
    pub(crate) spec: LaunchSpec,
    pub(crate) prepared: Arc<BoundKernel>,
    /// The constants of each function that has some of the launch.
    consts: Vec<Option<Box<[RegisterRow]>>>,
    /// Blocks of a cluster.
    pub(crate) cluster_size: u32,
    pub(crate) shared_bytes: u32,
    /// Where shared memory begins that system software uses, such as cooperative groups: behind
    /// the block's own, and only in blocks of kernels that ask for it.
    pub(crate) reserved_at: u32,
    /// Whether blocks have that part.
    pub(crate) has_reserved: bool,
    pub(crate) late_copies: bool,
    pub(crate) check_options: CheckOptions,
    /// Device memory for cooperative groups' grid barrier; 0 if not cooperative.
    pub(crate) workspace: u64,
    pub(crate) grid_id: u64,
    pub(crate) checked: Option<LaunchCheck>,
    /// With checks, when blocks run side by side.
    pub(crate) turns: Option<CheckOrder>,
    begun: Instant,
    stop: AtomicBool,
    fault: Mutex<Option<Box<Fault>>>,
}

impl std::fmt::Debug for LaunchRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LaunchRun")
            .field("spec", &self.spec)
            .finish_non_exhaustive()
    }
}

impl LaunchRun {
    pub(crate) fn new(
        spec: LaunchSpec,
        prepared: Arc<BoundKernel>,
        workspace: u64,
        checked: Option<LaunchCheck>,
    ) -> Self {
        static GRIDS: AtomicU64 = AtomicU64::new(1);
        let statics = prepared.code.shared_bytes;
        let shared_bytes = if spec.dynamic_shared_bytes > 0 {
            statics.next_multiple_of(16) + spec.dynamic_shared_bytes
        } else {
            statics
        };
        // Blocks that can wait for each other are run by one thread, in an order that is always the
        // same.
        let cluster_size = spec.cluster.iter().product::<u32>().max(1);
        let apart = !spec.cooperative && !prepared.code.communicates && cluster_size == 1;
        let functions = prepared.code.functions.iter().zip(&prepared.consts);
        let consts = functions
            .map(|(code, bank)| launch_bank(code, bank, &spec))
            .collect();
        LaunchRun {
            consts,
            turns: (checked.is_some() && apart).then(CheckOrder::default),
            checked,
            late_copies: spec.late_copies || spec.checks.is_some(),
            check_options: spec.checks.as_ref().map(|c| c.options).unwrap_or_default(),
            has_reserved: prepared.code.reserves_shared,
            reserved_at: shared_bytes.next_multiple_of(128),
            prepared,
            cluster_size,
            shared_bytes,
            workspace,
            grid_id: GRIDS.fetch_add(1, Ordering::Relaxed),
            begun: Instant::now(),
            stop: AtomicBool::new(false),
            fault: Mutex::new(None),
            spec,
        }
    }

    /// Bytes of a block's shared memory, with what system software uses of it.
    pub(crate) fn all_shared_bytes(&self) -> u32 {
        if self.has_reserved {
            self.reserved_at + RESERVED_SHARED_BYTES
        } else {
            self.shared_bytes
        }
    }

    pub(crate) fn code(&self) -> &KernelCode {
        &self.prepared.code
    }

    pub(crate) fn consts(&self, function: usize) -> &[RegisterRow] {
        match &self.consts[function] {
            Some(own) => own,
            None => &self.prepared.consts[function],
        }
    }

    pub(crate) fn threads(&self) -> u32 {
        self.spec.block.iter().product()
    }

    pub(crate) fn thread_index(&self, linear: u32) -> [u32; 3] {
        let [x, y, _] = self.spec.block;
        [linear % x, linear / x % y, linear / x / y]
    }

    pub(crate) fn block_index(&self, linear: u64) -> [u32; 3] {
        let [x, y, _] = self.spec.grid.map(u64::from);
        [linear % x, linear / x % y, linear / x / y].map(|n| n as u32)
    }

    pub(crate) fn place(
        &self,
        function: usize,
        pc: u32,
        block: [u32; 3],
        thread: [u32; 3],
    ) -> ExecutionPoint {
        self.code().place(function, pc, block, thread)
    }

    /// The allocation to name for a bad access.
    pub(crate) fn blame(&self, a: &Access) -> Option<Arc<AllocInfo>> {
        if a.space != MemSpace::Global {
            return None;
        }
        self.spec
            .space
            .find(a.addr)
            .or_else(|| self.spec.space.neighbours(a.addr).0)
    }

    pub(crate) fn nanoseconds(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    pub(crate) fn wall_nanoseconds(&self) -> u64 {
        static FIRST: std::sync::OnceLock<(Instant, u64)> = std::sync::OnceLock::new();
        let first = FIRST.get_or_init(|| {
            let wall = std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .unwrap_or_default();
            (Instant::now(), wall.as_nanos() as u64)
        });
        first.1 + first.0.elapsed().as_nanos() as u64
    }

    /// Whether blocks should stop where they are: a fault, a cancellation, the watchdog.
    pub(crate) fn must_stop(&self) -> bool {
        if self.stop.load(Ordering::Relaxed) {
            return true;
        }
        if self
            .spec
            .cancel
            .as_ref()
            .is_some_and(|c| c.load(Ordering::Relaxed))
        {
            self.stop.store(true, Ordering::Relaxed);
            return true;
        }
        if let Some(limit) = self.spec.watchdog
            && self.begun.elapsed() > limit
        {
            self.fail(Box::new(Fault {
                kind: FaultKind::Timeout {
                    limit_ms: limit.as_millis() as u64,
                },
                place: None,
                allocation: None,
            }));
            return true;
        }
        false
    }

    /// Ends the launch with `fault`, or with the first that was given.
    pub(crate) fn fail(&self, fault: Box<Fault>) {
        lock(&self.fault).get_or_insert(fault);
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Has the watchdog's fault name `place`, if that is what ended the launch.
    pub(crate) fn stopped_at(&self, place: ExecutionPoint) {
        if let Some(fault) = lock(&self.fault).as_mut()
            && matches!(fault.kind, FaultKind::Timeout { .. })
        {
            fault.place.get_or_insert(place);
        }
    }

    /// Whether blocks are to stop.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    pub(crate) fn take_fault(&self) -> Option<Box<Fault>> {
        lock(&self.fault).take()
    }
}

/// What an instruction executes on: the block, the warp and its active lanes.
pub(crate) struct Ctx<'l> {
    pub(crate) rows: RegisterFile,
    pub(crate) mask: u32,
    pub(crate) mask_row: MaskRow,
    pub(crate) run: &'l LaunchRun,
    pub(crate) code: &'l FunctionCode,
    pub(crate) block: Box<BlockState>,
    /// The other blocks of its cluster, if clusters have several.
    pub(crate) cluster: Option<Box<ClusterState>>,
    /// Warp in hand.
    pub(crate) warp: usize,
    pub(crate) local_base: u32,
    pub(crate) frame: u32,
    pub(crate) read_window: Window,
    pub(crate) write_window: Window,
    pub(crate) trouble: Option<Box<Fault>>,
    /// Atomics, volatile and acquiring loads since the last check.
    pub(crate) waits: u32,
    /// Strong loads, and atomics that changed nothing: what lanes do while they wait.
    pub(crate) spins: u32,
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
            cluster: None,
            warp: 0,
            local_base: 0,
            frame: 0,
            read_window: Window::default(),
            write_window: Window::default(),
            trouble: None,
            waits: 0,
            spins: 0,
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
    pub(crate) fn pc_of(&self, i: &DecodedInst) -> u32 {
        let at = (std::ptr::from_ref(i) as usize).wrapping_sub(self.code.insts.as_ptr() as usize);
        (at / size_of::<DecodedInst>()) as u32
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
    pub(crate) fn fail(&mut self, i: &DecodedInst, lane: u32, kind: FaultKind) {
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

    /// As [`Ctx::fail`], for an access outside the surface that begins at `start`.
    #[cold]
    pub(crate) fn outside_surface(
        &mut self,
        i: &DecodedInst,
        lane: u32,
        kind: FaultKind,
        start: u64,
    ) {
        let allocation = self.run.spec.space.find(start);
        self.fail(i, lane, kind);
        if let Some(fault) = &mut self.trouble
            && matches!(fault.kind, FaultKind::OutsideSurface(_))
        {
            fault.allocation = fault.allocation.take().or(allocation);
        }
    }

    #[cold]
    pub(crate) fn illegal(&mut self, i: &DecodedInst, lane: u32, access: Access) {
        self.fail(i, lane, FaultKind::IllegalAddress(access));
    }

    #[cold]
    pub(crate) fn misaligned(&mut self, i: &DecodedInst, lane: u32, access: Access) {
        self.fail(i, lane, FaultKind::Misaligned(access));
    }
}
