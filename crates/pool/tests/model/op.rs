//! An operation of a random program.

/// The number of streams at a time.
pub(super) const STREAMS: usize = 8;
pub(super) const TENANTS: u16 = 3;

/// An operation of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// Allocates memory, in a stream or anywhere.
    Allocate {
        stream: Option<usize>,
        bytes: u64,
        align: u64,
        tenant: u16,
    },
    /// Work in a stream uses a block, after waiting for what it must follow.
    Use {
        which: usize,
        stream: usize,
    },
    /// Frees a block, in a stream that waits for its uses, or anywhere.
    Free {
        which: usize,
        stream: Option<usize>,
    },
    /// Frees an address that is not a block's.
    FreeWrong {
        address: u64,
    },
    /// Frees a block on a condition on its note.
    FreeIf {
        which: usize,
        stream: Option<usize>,
        odd: bool,
    },
    /// Frees the blocks with one of 256 numbers in their notes.
    FreeAll {
        note: u8,
    },
    /// Looks up the block at an address.
    Look {
        which: usize,
        offset: u64,
    },
    /// The device completes some of a stream's work.
    Advance {
        stream: usize,
        steps: u32,
    },
    /// The host waits for a stream, or for all.
    Synchronise {
        stream: Option<usize>,
    },
    /// Starts or ends a capture, during which the clock refuses.
    Capture,
    /// A stream is destroyed, and another created.
    Retire {
        stream: usize,
    },
    /// As `Retire`, when all of the stream's work is done.
    Finish {
        stream: usize,
    },
    /// The context ends: all blocks with it, and all memory.
    End,
    /// The thread finds the pool's lock held, and gets an arena.
    Meet,
    /// For a while one stream alone allocates and frees, as if for long.
    Alone {
        stream: usize,
    },
    /// Trims ready memory, except some of it.
    Trim {
        sixteenths: u64,
    },
    /// Sets how much memory may be retained beyond the live bytes, and how much may be ready, in
    /// sixteenths of the device's memory; sixteen mean no bound.
    Retention {
        slack: u64,
        high: u64,
    },
    Pin {
        which: usize,
    },
    Unpin,
    /// Sets the budget, in fractions of the device's memory.
    Limit {
        sixteenths: u64,
    },
    TenantLimit {
        tenant: u16,
        sixteenths: u64,
    },
    /// The driver refuses this many growths.
    Fail {
        times: u32,
    },
}

impl Op {
    /// Decodes an operation; any bits are one.
    pub(crate) fn from_bits(bits: u64) -> Self {
        let (kind, a, b, c) = (
            bits % 256,
            (bits >> 8) as usize & 0xffff,
            (bits >> 24) as usize & 0xffff,
            bits >> 40,
        );
        let stream = b % STREAMS;
        let place = (b % 16 < 12).then_some(stream);
        match kind {
            0..=79 => {
                let bytes = match c % 16 {
                    0..=8 => c % 4096,
                    9..=13 => c % (256 << 10),
                    14 => c % (1 << 20),
                    _ => c % (6 << 20),
                };
                let align = 1 << (if a.is_multiple_of(8) { a / 8 % 18 } else { 9 });
                Op::Allocate {
                    stream: place,
                    bytes,
                    align,
                    tenant: (a % 5).min(2) as u16,
                }
            }
            80..=155 => Op::Free {
                which: a,
                stream: place,
            },
            156..=195 => Op::Use { which: a, stream },
            196..=235 => Op::Advance {
                stream,
                steps: c as u32 % 8 + 1,
            },
            236..=240 => Op::Synchronise {
                stream: Some(stream),
            },
            241 => Op::Synchronise { stream: None },
            242..=243 => Op::Capture,
            244 if c % 1024 == 0 => Op::End,
            244 if c % 2 == 0 => Op::Retire { stream },
            244 => Op::Finish { stream },
            245 if c % 64 == 0 => Op::Trim {
                sixteenths: b as u64 % 4,
            },
            245 if c % 64 == 1 => Op::Retention {
                slack: a as u64 % 17,
                high: b as u64 % 17,
            },
            246 => Op::Pin { which: a },
            247 => Op::Unpin,
            248 if c % 64 == 0 => Op::Limit {
                sixteenths: a as u64 % 16 + 1,
            },
            249 if c % 64 == 0 => Op::TenantLimit {
                tenant: a as u16 % TENANTS,
                sixteenths: b as u64 % 24 + 1,
            },
            249 if c % 2 == 1 => Op::Meet,
            249 => Op::Alone { stream },
            250 => Op::Fail {
                times: a as u32 % 4,
            },
            251 => Op::FreeWrong { address: c << 8 },
            252 => Op::FreeIf {
                which: a,
                stream: place,
                odd: c % 2 == 1,
            },
            253 => Op::FreeAll { note: c as u8 },
            254 if c % 4 == 0 => Op::Look {
                which: a,
                offset: c % (128 << 10),
            },
            _ => Op::Advance { stream, steps: 64 },
        }
    }
}
