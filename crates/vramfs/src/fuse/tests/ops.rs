//! Programs of filesystem calls, with small numbers so that a shrunk program is readable.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::{Just, Strategy, any};
use proptest::prop_oneof;
use proptest::strategy::Union;

use super::world::MOST;

/// An offset in a file.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    Page(u8),
    Byte(u32),
    /// This many bytes before the end.
    End(u16),
    Far(u8),
}

/// A call. Numbers are indexes of existing objects, modulo their count.
#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    Make {
        at: u8,
        name: u8,
        kind: u8,
        mode: u16,
        credentials: u8,
    },
    MakeUnnamed {
        at: u8,
        mode: u16,
        credentials: u8,
    },
    MakeLink {
        at: u8,
        name: u8,
        len: u16,
    },
    AddName {
        node: u8,
        at: u8,
        name: u8,
    },
    RemoveName {
        at: u8,
        name: u8,
    },
    RemoveDirectory {
        at: u8,
        name: u8,
    },
    MoveName {
        from: (u8, u8),
        to: (u8, u8),
        how: u8,
    },
    LookUp {
        at: u8,
        name: u8,
    },
    ReadLink {
        node: u8,
    },
    Forget {
        node: u8,
        times: u8,
    },
    List {
        at: u8,
        count: u8,
        with_attributes: bool,
        rewinds: bool,
    },
    Change {
        node: u8,
        mode: Option<u16>,
        owner: Option<u8>,
        times: (Option<i32>, Option<i32>),
    },
    Truncate {
        node: u8,
        to: Place,
    },
    Write {
        node: u8,
        at: Place,
        len: u32,
        byte: u8,
        credentials: u8,
    },
    Append {
        node: u8,
        len: u32,
        byte: u8,
    },
    Read {
        node: u8,
        at: Place,
        len: u32,
        is_noted: bool,
    },
    Allocate {
        node: u8,
        at: Place,
        len: u32,
        mode: u8,
    },
    Copy {
        from: (u8, Place),
        to: (u8, Place),
        len: u32,
        in_rows: bool,
    },
    Seek {
        node: u8,
        at: Place,
        is_data: bool,
    },
    SetXattr {
        node: u8,
        name: u8,
        len: u32,
        how: u8,
        credentials: u8,
    },
    GetXattr {
        node: u8,
        name: u8,
    },
    RemoveXattr {
        node: u8,
        name: u8,
    },
    Resize {
        blocks: u8,
    },
    Scrub,
    Inject {
        node: Option<u8>,
        fault: u8,
        count: u8,
        seed: u8,
    },
    /// The memory fails this many calls, after some others.
    Refuse {
        after: u8,
        count: u8,
    },
    /// No further memory can be allocated.
    Starve {
        on: bool,
    },
}

/// A program, and the filesystem it runs on.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub blocks: u8,
    pub inodes: u8,
    pub ops: Vec<Op>,
}

/// The maximum length of a program; the average is half of it.
const CALLS: usize = 400;

/// The failures that happen besides the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failures {
    /// Faults that the code corrects.
    Corrected,
    /// Those, and failed calls of the memory.
    Refused,
    /// So many faults that blocks are lost, and some failed calls.
    Lost,
}

fn places() -> impl Strategy<Value = Place> {
    prop_oneof![
        8 => (0..170u8).prop_map(Place::Page),
        6 => (0..600_000u32).prop_map(Place::Byte),
        6 => (0..40u8).prop_map(Place::Page),
        4 => (0..9000u16).prop_map(Place::End),
        1 => (0..6u8).prop_map(Place::Far),
    ]
}

fn lens() -> impl Strategy<Value = u32> {
    prop_oneof![
        5 => 1..200u32,
        6 => 1..14_000u32,
        2 => 1..160_000u32,
        2 => (1..40u32).prop_map(|pages| pages * 4096),
    ]
}

/// A small number, or seldom one with a special meaning.
fn some(most: u8) -> impl Strategy<Value = u8> {
    prop_oneof![30 => 0..most, 1 => 240..=255u8]
}

fn names() -> impl Strategy<Value = u8> {
    prop_oneof![40 => 0..6u8, 1 => 251..=255u8]
}

fn ops(failures: Failures) -> impl Strategy<Value = Op> {
    let (directory, node, file) = (|| some(8), || some(30), || some(12));
    let (faults, refusals, most_faults) = match failures {
        Failures::Corrected => (8, 0, 2u8),
        Failures::Refused => (3, 24, 2),
        Failures::Lost => (5, 4, 40),
    };
    let all = [
        (
            9,
            (directory(), names(), 0..5u8, 0..4096u16, 0..4u8)
                .prop_map(|(at, name, kind, mode, credentials)| Op::Make {
                    at,
                    name,
                    kind,
                    mode,
                    credentials,
                })
                .boxed(),
        ),
        (
            3,
            (directory(), 0..4096u16, 0..4u8)
                .prop_map(|(at, mode, credentials)| Op::MakeUnnamed {
                    at,
                    mode,
                    credentials,
                })
                .boxed(),
        ),
        (
            2,
            (
                directory(),
                names(),
                prop_oneof![20 => 0..200u16, 1 => 4090..4100u16],
            )
                .prop_map(|(at, name, len)| Op::MakeLink { at, name, len })
                .boxed(),
        ),
        (
            4,
            (node(), directory(), names())
                .prop_map(|(node, at, name)| Op::AddName { node, at, name })
                .boxed(),
        ),
        (
            5,
            (directory(), names())
                .prop_map(|(at, name)| Op::RemoveName { at, name })
                .boxed(),
        ),
        (
            3,
            (directory(), names())
                .prop_map(|(at, name)| Op::RemoveDirectory { at, name })
                .boxed(),
        ),
        (
            5,
            ((directory(), names()), (directory(), names()), 0..6u8)
                .prop_map(|(from, to, how)| Op::MoveName { from, to, how })
                .boxed(),
        ),
        (
            3,
            (directory(), names())
                .prop_map(|(at, name)| Op::LookUp { at, name })
                .boxed(),
        ),
        (1, node().prop_map(|node| Op::ReadLink { node }).boxed()),
        (
            6,
            (node(), 0..6u8)
                .prop_map(|(node, times)| Op::Forget { node, times })
                .boxed(),
        ),
        (
            4,
            (directory(), 0..9u8, any::<bool>(), any::<bool>())
                .prop_map(|(at, count, with_attributes, rewinds)| Op::List {
                    at,
                    count,
                    with_attributes,
                    rewinds,
                })
                .boxed(),
        ),
        (
            3,
            (
                node(),
                option::of(0..4096u16),
                option::of(0..4u8),
                (option::of(any::<i32>()), option::of(any::<i32>())),
            )
                .prop_map(|(node, mode, owner, times)| Op::Change {
                    node,
                    mode,
                    owner,
                    times,
                })
                .boxed(),
        ),
        (
            6,
            (file(), places())
                .prop_map(|(node, to)| Op::Truncate { node, to })
                .boxed(),
        ),
        (
            20,
            (file(), places(), lens(), any::<u8>(), 0..8u8)
                .prop_map(|(node, at, len, byte, credentials)| Op::Write {
                    node,
                    at,
                    len,
                    byte,
                    credentials,
                })
                .boxed(),
        ),
        (
            8,
            (file(), lens(), any::<u8>())
                .prop_map(|(node, len, byte)| Op::Append { node, len, byte })
                .boxed(),
        ),
        (
            6,
            (file(), places(), lens(), any::<bool>())
                .prop_map(|(node, at, len, is_noted)| Op::Read {
                    node,
                    at,
                    len,
                    is_noted,
                })
                .boxed(),
        ),
        (
            10,
            (file(), places(), lens(), 0..8u8)
                .prop_map(|(node, at, len, mode)| Op::Allocate {
                    node,
                    at,
                    len,
                    mode,
                })
                .boxed(),
        ),
        (
            8,
            (
                (file(), places()),
                (file(), places()),
                lens(),
                any::<bool>(),
            )
                .prop_map(|(from, to, len, in_rows)| Op::Copy {
                    from,
                    to,
                    len,
                    in_rows,
                })
                .boxed(),
        ),
        (
            3,
            (file(), places(), any::<bool>())
                .prop_map(|(node, at, is_data)| Op::Seek { node, at, is_data })
                .boxed(),
        ),
        (
            3,
            (
                node(),
                0..8u8,
                prop_oneof![20 => 0..300u32, 1 => 65_530..65_540u32],
                0..3u8,
                0..4u8,
            )
                .prop_map(|(node, name, len, how, credentials)| Op::SetXattr {
                    node,
                    name,
                    len,
                    how,
                    credentials,
                })
                .boxed(),
        ),
        (
            1,
            (node(), 0..8u8)
                .prop_map(|(node, name)| Op::GetXattr { node, name })
                .boxed(),
        ),
        (
            1,
            (node(), 0..8u8)
                .prop_map(|(node, name)| Op::RemoveXattr { node, name })
                .boxed(),
        ),
        (
            2,
            (0..=MOST as u8 + 1)
                .prop_map(|blocks| Op::Resize { blocks })
                .boxed(),
        ),
        (2, Just(Op::Scrub).boxed()),
        (
            faults,
            (option::of(file()), 0..4u8, 0..most_faults, any::<u8>())
                .prop_map(|(node, fault, count, seed)| Op::Inject {
                    node,
                    fault,
                    count,
                    seed,
                })
                .boxed(),
        ),
        (
            refusals,
            (0..8u8, 1..4u8)
                .prop_map(|(after, count)| Op::Refuse { after, count })
                .boxed(),
        ),
        (1, any::<bool>().prop_map(|on| Op::Starve { on }).boxed()),
    ];
    Union::new_weighted(all.into_iter().filter(|it| it.0 > 0).collect())
}

pub(super) fn program(failures: Failures) -> impl Strategy<Value = Program> {
    let (blocks, inodes) = (1..=MOST as u8, 4..60u8);
    let all = (blocks, inodes, vec(ops(failures), 1..CALLS));
    all.prop_map(|(blocks, inodes, ops)| Program {
        blocks,
        inodes,
        ops,
    })
}
