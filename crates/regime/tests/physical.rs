//! Physical memory that a program maps itself, in random sequences of calls: what is charged is
//! what the software device has given.

#[macro_use]
mod support;

use fercuda_cuda_sys::types::*;

use support::{MIB, begin, device, its_governor, properties, seed, used_bytes};

const PIECE: u64 = 2 * MIB;
/// Places at which the program maps memory.
const SLOTS: u64 = 64;
const LIMIT: u64 = 96 * MIB;
const STEPS: usize = 1500;

/// The program of one seed.
struct Program {
    random: fastrand::Rng,
    base: u64,
    /// Handles with their sizes, once for each reference.
    handles: Vec<(CUmemGenericAllocationHandle, u64)>,
    /// Start and size of each mapping, and the size of all the memory that it is part of.
    mappings: Vec<(u64, u64, u64)>,
    refused: usize,
}

impl Program {
    fn create(&mut self) {
        let bytes = self.random.u64(1..=8) * PIECE;
        let mut handle = 0;
        match call!(cuMemCreate(&mut handle, bytes as usize, &properties(), 0)) {
            CUresult::CUDA_SUCCESS => self.handles.push((handle, bytes)),
            refused => {
                assert_eq!(refused, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
                assert!(used_bytes() + bytes > LIMIT, "{bytes} B fit");
                self.refused += 1;
            }
        }
    }

    /// Maps a part of a handle, or all of it, or more than there is.
    fn map(&mut self) {
        let Some(&(handle, whole)) = self.random.choice(&self.handles) else {
            return;
        };
        let bytes = self.random.u64(1..=whole / PIECE + 1) * PIECE;
        let address = self.base + self.random.u64(0..SLOTS) * PIECE;
        let (end, most) = (address + bytes, self.base + SLOTS * PIECE);
        let overlaps = |(at, len, _): &(u64, u64, u64)| *at < end && address < at + len;
        let is_valid = bytes <= whole && end <= most && !self.mappings.iter().any(overlaps);
        let mapped = call!(cuMemMap(address, bytes as usize, 0, handle, 0));
        assert_eq!(mapped == CUresult::CUDA_SUCCESS, is_valid);
        if is_valid {
            self.mappings.push((address, bytes, whole));
        }
    }

    /// Unmaps a mapping, or half of one, which is refused.
    fn unmap(&mut self) {
        if self.mappings.is_empty() {
            return;
        }
        let at = self.random.usize(..self.mappings.len());
        let (address, bytes, _) = self.mappings[at];
        if bytes > PIECE && self.random.u8(..4) == 0 {
            let half = call!(cuMemUnmap(address, PIECE as usize));
            assert_eq!(half, CUresult::CUDA_ERROR_INVALID_VALUE);
            return;
        }
        ok!(cuMemUnmap(address, bytes as usize));
        self.mappings.swap_remove(at);
    }

    fn release(&mut self) {
        if self.handles.is_empty() {
            return;
        }
        let at = self.random.usize(..self.handles.len());
        let (handle, _) = self.handles.swap_remove(at);
        ok!(cuMemRelease(handle));
        if self.handles.iter().all(|(it, _)| *it != handle) {
            let again = call!(cuMemRelease(handle));
            assert_eq!(again, CUresult::CUDA_ERROR_INVALID_VALUE);
        }
    }

    /// Retains the memory at an address, mapped or not.
    fn retain(&mut self) {
        let address = self.base + self.random.u64(0..SLOTS * PIECE);
        let is_mapped = |(at, len, _): &&(u64, u64, u64)| (*at..at + len).contains(&address);
        let mapping = self.mappings.iter().find(is_mapped).copied();
        let mut handle = 0;
        let retained = call!(cuMemRetainAllocationHandle(&mut handle, address as *mut _));
        assert_eq!(retained == CUresult::CUDA_SUCCESS, mapping.is_some());
        self.handles
            .extend(mapping.map(|(_, _, whole)| (handle, whole)));
    }

    fn step(&mut self) {
        match self.random.u8(..10) {
            0 | 1 => self.create(),
            2..=4 => self.map(),
            5 => self.unmap(),
            6 | 7 => self.release(),
            _ => self.retain(),
        }
    }
}

#[test]
fn what_is_charged_is_what_the_device_has_given() {
    let _turn = begin();
    device().budget().set_limit(LIMIT);
    let before = (used_bytes(), device().budget().used_bytes());
    let mut base = 0;
    ok!(cuMemAddressReserve(
        &mut base,
        (SLOTS * PIECE) as usize,
        0,
        0,
        0
    ));
    let mut program = Program {
        random: fastrand::Rng::with_seed(seed()),
        base,
        handles: Vec::new(),
        mappings: Vec::new(),
        refused: 0,
    };
    for step in 0..STEPS {
        program.step();
        let given = used_bytes() - before.0;
        let recorded = its_governor().governed().on_device_bytes(0);
        let charged = device().budget().used_bytes() - before.1;
        assert_eq!([recorded, charged], [given; 2], "after step {step}");
        assert!(given <= LIMIT);
    }
    assert!(program.refused > 0, "the limit was never reached");
    while !program.handles.is_empty() {
        program.release();
    }
    while !program.mappings.is_empty() {
        program.unmap();
    }
    assert_eq!(device().budget().used_bytes(), before.1);
    assert_eq!(used_bytes(), before.0);
    ok!(cuMemAddressFree(base, (SLOTS * PIECE) as usize));
    device().budget().set_limit(u64::MAX);
}
