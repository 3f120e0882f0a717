//! The number of registers that a thread needs, an estimate from a function's text.
//!
//! PTX has a register for each value. One lasts here from its first mention to its last, in the
//! order of the text, and to the end of each loop that it is mentioned in but not first; as many
//! are needed as last at one place.

use fercuda_ptx::ast::{AddrBase, Inst, Operand, Stmt, Sym, Symbols};
use fercuda_ptx::words::{Op, ScalarType};
use rustc_hash::FxHashMap;

use super::interface::KernelInfo;
use super::width::bits;

/// Registers of 32 bits of a multiprocessor, and so the most of a block.
pub(crate) const BLOCK_REGISTERS: u32 = 65536;

/// Where a register is mentioned first and last, in instructions.
#[derive(Debug, Clone, Copy)]
struct Lifetime {
    words: u32,
    first: u32,
    last: u32,
}

/// A function's text as far as it was read.
struct Reader<'m> {
    symbols: &'m Symbols,
    /// Words of the registers that each scope declares; of `%r<10>` by `%r`.
    scopes: Vec<FxHashMap<&'m str, u32>>,
    /// Registers of each scope that were mentioned.
    living: Vec<FxHashMap<Sym, Lifetime>>,
    ended: Vec<Lifetime>,
    labels: FxHashMap<Sym, u32>,
    /// Beginnings and ends of loops.
    loops: Vec<(u32, u32)>,
    at: u32,
}

/// 32-bit registers that last at one place of `body`, at most.
pub(crate) fn registers(body: &[Stmt], symbols: &Symbols) -> u32 {
    let mut reader = Reader {
        symbols,
        scopes: Vec::new(),
        living: Vec::new(),
        ended: Vec::new(),
        labels: FxHashMap::default(),
        loops: Vec::new(),
        at: 0,
    };
    reader.scope(body);
    reader.loops.sort_unstable();
    let mut changes = vec![0i64; reader.at as usize + 2];
    for it in &reader.ended {
        let inside = reader.loops.partition_point(|l| l.0 < it.first);
        let around = reader.loops[inside..].iter().take_while(|l| l.0 < it.last);
        let last = around.map(|l| l.1).fold(it.last, u32::max);
        changes[it.first as usize] += i64::from(it.words);
        // An instruction's result may take the place of what it reads last.
        changes[last.max(it.first + 1) as usize] -= i64::from(it.words);
    }
    let mut now = 0;
    let most = changes.iter().map(|n| {
        now += n;
        now
    });
    most.max().unwrap_or(0).clamp(0, u32::MAX.into()) as u32
}

impl<'m> Reader<'m> {
    fn scope(&mut self, body: &'m [Stmt]) {
        self.scopes.push(FxHashMap::default());
        self.living.push(FxHashMap::default());
        for s in body {
            match s {
                Stmt::Block(inner) => self.scope(inner),
                Stmt::Label(name) => {
                    self.labels.insert(*name, self.at);
                }
                Stmt::Reg { vector, ty, names } if *ty != ScalarType::Pred => {
                    let words = bits(*ty).div_ceil(32) * (*vector).max(1);
                    let scope = self.scopes.last_mut();
                    let named = names.iter().map(|n| (self.symbols.name(n.0), words));
                    scope.into_iter().for_each(|it| it.extend(named.clone()));
                }
                Stmt::Inst(i) => self.inst(i),
                _ => {}
            }
        }
        self.scopes.pop();
        let living = self.living.pop().unwrap_or_default();
        self.ended.extend(living.into_values());
    }

    fn inst(&mut self, i: &Inst) {
        self.at += 1;
        if i.op == Op::Bra
            && let Some(Operand::Name(label)) = i.operands.last()
            && let Some(&start) = self.labels.get(label)
        {
            self.loops.push((start, self.at));
        }
        i.operands.iter().for_each(|it| self.operand(it));
    }

    fn operand(&mut self, o: &Operand) {
        match o {
            Operand::Name(s)
            | Operand::Not(s)
            | Operand::Offset(s, _)
            | Operand::Member(s, _)
            | Operand::Select(s, _)
            | Operand::Address {
                base: AddrBase::Name(s),
                ..
            } => self.mention(*s),
            Operand::Negated(inner) => self.operand(inner),
            Operand::Vector(v) | Operand::List(v) | Operand::Bracket(v) => {
                v.iter().for_each(|it| self.operand(it));
            }
            Operand::Pair(a, b) => {
                self.operand(a);
                self.operand(b);
            }
            _ => {}
        }
    }

    fn mention(&mut self, name: Sym) {
        let at = self.at;
        if let Some(it) = self
            .living
            .iter_mut()
            .rev()
            .find_map(|it| it.get_mut(&name))
        {
            it.last = at;
            return;
        }
        let text = self.symbols.name(name);
        let family = text.trim_end_matches(|c: char| c.is_ascii_digit());
        let words =
            |scope: &FxHashMap<&str, u32>| scope.get(text).or_else(|| scope.get(family)).copied();
        let found = (0..self.scopes.len())
            .rev()
            .find_map(|n| Some((n, words(&self.scopes[n])?)));
        if let Some((scope, words)) = found {
            let it = Lifetime {
                words,
                first: at,
                last: at,
            };
            self.living[scope].insert(name, it);
        }
    }
}

/// Registers of a kernel that needs `wanted`: no more than its header allows, or than leave room
/// for blocks of the size that it names.
pub(crate) fn allotted(kernel: &KernelInfo, wanted: u32, most: Option<u32>) -> u32 {
    let mut registers = wanted.min(most.unwrap_or(u32::MAX));
    if let Some(size) = kernel.max_threads.or(kernel.required_threads) {
        let threads = size.iter().fold(1, |n: u32, &t| n.saturating_mul(t.max(1)));
        let warps = threads.div_ceil(32).max(1);
        let blocks = kernel.min_blocks.unwrap_or(1).max(1);
        // In steps of eight, as they are given out.
        let of_thread = BLOCK_REGISTERS / 32 / warps.saturating_mul(blocks) / 8 * 8;
        registers = registers.min(of_thread);
    }
    registers.clamp(16, 255)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(body: &str) -> u32 {
        let text = format!(
            ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k()\n{{\n\
             .reg .pred %p<3>;\n.reg .b32 %r<99>;\n.reg .b64 %rd<9>;\n{body}\nret;\n}}\n"
        );
        let module = fercuda_ptx::parse(&text).expect("valid PTX");
        let body = module.functions().next().and_then(|it| it.body.as_deref());
        registers(body.expect("a body"), &module.symbols)
    }

    #[test]
    fn values_that_follow_each_other_share_a_register() {
        let chain: String = (1..90)
            .map(|n| format!("add.u32 %r{n}, %r{}, 1;\n", n - 1))
            .collect();
        assert_eq!(of(&format!("mov.u32 %r0, %tid.x;\n{chain}")), 1);
        let all: String = (0..30).map(|n| format!("mov.u32 %r{n}, {n};\n")).collect();
        let sum: String = (0..30)
            .map(|n| format!("add.u32 %r98, %r98, %r{n};\n"))
            .collect();
        assert_eq!(of(&format!("{all}{sum}")), 30);
        assert_eq!(
            of("mov.u64 %rd1, 1; mov.u64 %rd2, 2; add.u64 %rd3, %rd1, %rd2;"),
            4
        );
        assert_eq!(of(""), 0);
    }

    #[test]
    fn what_a_loop_reads_lasts_to_its_end() {
        let text = |end: &str| {
            format!(
                "mov.u32 %r1, 1; mov.u32 %r2, 0;\nAGAIN:\nadd.u32 %r2, %r2, %r1;\n\
                 mov.u32 %r3, 5; mov.u32 %r4, 6; add.u32 %r5, %r3, %r4;\n{end}\n"
            )
        };
        assert_eq!(of(&text("")), 2);
        assert_eq!(of(&text("@%p1 bra AGAIN;")), 4);
    }

    #[test]
    fn names_of_inner_scopes_are_registers_of_their_own() {
        let inner = "{ .reg .b64 t<4>; mov.u64 t0, 1; mov.u64 t1, t0; }\n";
        assert_eq!(of(&inner.repeat(20)), 2);
        assert_eq!(of(&format!("mov.u32 %r1, 1;\n{inner}mov.u32 %r2, %r1;")), 3);
    }

    #[test]
    fn a_kernel_is_allotted_what_its_blocks_have_room_for() {
        let kernel = |threads: u32, blocks: Option<u32>| KernelInfo {
            max_threads: Some([threads, 1, 1]),
            min_blocks: blocks,
            ..KernelInfo::default()
        };
        assert_eq!(allotted(&KernelInfo::default(), 200, None), 200);
        assert_eq!(allotted(&KernelInfo::default(), 200, Some(32)), 32);
        assert_eq!(allotted(&kernel(1024, None), 200, None), 64);
        assert_eq!(allotted(&kernel(256, Some(8)), 200, None), 32);
        assert_eq!(allotted(&kernel(256, None), 400, None), 255);
        assert_eq!(allotted(&kernel(1024, Some(9)), 3, None), 16);
    }
}
