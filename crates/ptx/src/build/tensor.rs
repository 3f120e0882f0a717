//! Matrix instructions of a warp, and asynchronous copies to shared memory.
//!
//! The PTX ISA specifies which lane holds which element ("Warp Level Matrix
//! Multiply-Accumulate Instructions"); registers here are in its order.

use super::kernel::KernelBuilder;
use super::ptr::{Global, Ptr, Shared};
use super::reg::{Pred, Reg, Src};
use super::state::w;
use super::types::{Bf16x2, F16x2, MemoryElement, Scalar, Tf32};
use crate::ast::{Imm, Operand};
use crate::words::{Mod, Op, ScalarType, Word};

impl KernelBuilder {
    fn vector<'k, T: Scalar>(&'k self, regs: &[Reg<'k, T>]) -> Operand {
        Operand::Vector(regs.iter().map(|&r| self.src(Src::of(r))).collect())
    }

    fn mma<'k, A: Scalar, C: Scalar, const NA: usize, const NB: usize, const NC: usize>(
        &'k self,
        shape: Word,
        types: [ScalarType; 4],
        a: [Reg<'k, A>; NA],
        b: [Reg<'k, A>; NB],
        c: [Reg<'k, C>; NC],
    ) -> [Reg<'k, C>; NC] {
        self.needs(80, "this mma.sync");
        let d: [Reg<'k, C>; NC] = std::array::from_fn(|_| self.fresh());
        let mut words = vec![
            w(Word::Sync),
            w(Word::Aligned),
            w(shape),
            w(Word::Row),
            w(Word::Col),
        ];
        words.extend(types.map(Mod::Type));
        let operands = vec![
            self.vector(&d),
            self.vector(&a),
            self.vector(&b),
            self.vector(&c),
        ];
        self.emit(Op::Mma, words, 1, operands);
        d
    }

    /// `a * b + c` of 16x16 by 16x8 binary16, accumulated in `f32`.
    pub fn mma_f16<'k>(
        &'k self,
        a: [Reg<'k, F16x2>; 4],
        b: [Reg<'k, F16x2>; 2],
        c: [Reg<'k, f32>; 4],
    ) -> [Reg<'k, f32>; 4] {
        use ScalarType::{F16, F32};
        self.mma(Word::M16n8k16, [F32, F16, F16, F32], a, b, c)
    }

    /// `a * b + c` of 16x16 by 16x8 bfloat16, accumulated in `f32`.
    pub fn mma_bf16<'k>(
        &'k self,
        a: [Reg<'k, Bf16x2>; 4],
        b: [Reg<'k, Bf16x2>; 2],
        c: [Reg<'k, f32>; 4],
    ) -> [Reg<'k, f32>; 4] {
        use ScalarType::{Bf16, F32};
        self.mma(Word::M16n8k16, [F32, Bf16, Bf16, F32], a, b, c)
    }

    /// `a * b + c` of 16x8 by 8x8 tf32, accumulated in `f32`.
    pub fn mma_tf32<'k>(
        &'k self,
        a: [Reg<'k, Tf32>; 4],
        b: [Reg<'k, Tf32>; 2],
        c: [Reg<'k, f32>; 4],
    ) -> [Reg<'k, f32>; 4] {
        use ScalarType::F32;
        let tf32 = ScalarType::Tf32;
        self.mma(Word::M16n8k8, [F32, tf32, tf32, F32], a, b, c)
    }

    /// `a * b + c` of 16x32 by 32x8 signed bytes, four a register, accumulated in `i32`.
    pub fn mma_s8<'k>(
        &'k self,
        a: [Reg<'k, u32>; 4],
        b: [Reg<'k, u32>; 2],
        c: [Reg<'k, i32>; 4],
    ) -> [Reg<'k, i32>; 4] {
        use ScalarType::{S8, S32};
        self.mma(Word::M16n8k32, [S32, S8, S8, S32], a, b, c)
    }

    /// Waits until at most `pending` of this thread's copy groups are unfinished.
    pub fn copy_wait(&self, pending: u32) {
        self.needs(80, "cp.async");
        let pending = Operand::Imm(Imm::Int {
            value: i64::from(pending),
            unsigned: false,
        });
        self.emit(
            Op::Cp,
            vec![w(Word::Async), w(Word::WaitGroup)],
            0,
            vec![pending],
        );
    }

    /// Makes a group of this thread's asynchronous copies since the last group.
    pub fn copy_commit(&self) {
        self.needs(80, "cp.async");
        self.emit(
            Op::Cp,
            vec![w(Word::Async), w(Word::CommitGroup)],
            0,
            Vec::new(),
        );
    }
}

impl<'k, T: MemoryElement> Ptr<'k, Shared, T> {
    /// Begins a copy of 16 bytes from `source`; both aligned to 16. Finished after
    /// [`KernelBuilder::copy_wait`], and seen by other threads after a barrier.
    pub fn copy_16_from(self, source: Ptr<'k, Global, T>) {
        self.copy_16(source, None);
    }

    /// As [`Ptr::copy_16_from`] where `pred` holds; elsewhere zeros are written and `source` is
    /// not read.
    pub fn copy_16_from_or_zero(self, source: Ptr<'k, Global, T>, pred: Pred<'k>) {
        let bytes = pred.select(16u32, 0u32);
        self.copy_16(source, Some(bytes.operand()));
    }

    fn copy_16(self, source: Ptr<'k, Global, T>, read: Option<Operand>) {
        let k = self.kernel();
        k.needs(80, "cp.async");
        k.same(source.kernel());
        let bytes = Operand::Imm(Imm::Int {
            value: 16,
            unsigned: false,
        });
        let words = vec![
            w(Word::Async),
            w(Word::Cg),
            w(Word::Shared),
            w(Word::Global),
        ];
        let mut operands = vec![self.bracket(), source.bracket(), bytes];
        operands.extend(read);
        k.emit(Op::Cp, words, 0, operands);
    }

    fn ldmatrix<V: Scalar>(self, trans: bool) -> [Reg<'k, V>; 4] {
        let k = self.kernel();
        k.needs(75, "ldmatrix");
        let d: [Reg<'k, V>; 4] = std::array::from_fn(|_| k.fresh());
        let mut words = vec![w(Word::Sync), w(Word::Aligned), w(Word::M8n8), w(Word::X4)];
        if trans {
            words.push(w(Word::Trans));
        }
        words.extend([w(Word::Shared), Mod::Type(ScalarType::B16)]);
        let list = Operand::Vector(d.iter().map(|r| r.operand()).collect());
        k.emit(Op::Ldmatrix, words, 1, vec![list, self.bracket()]);
        d
    }

    /// Four 8x8 matrices of 16-bit elements; lane `8m + r` points at row `r` of matrix `m`.
    #[must_use]
    pub fn load_matrix_4<V: Scalar>(self) -> [Reg<'k, V>; 4] {
        const { assert!(V::BYTES == 4, "a fragment register has 32 bits") }
        self.ldmatrix(false)
    }

    /// As [`Ptr::load_matrix_4`], each matrix transposed.
    #[must_use]
    pub fn load_matrix_4_transposed<V: Scalar>(self) -> [Reg<'k, V>; 4] {
        const { assert!(V::BYTES == 4, "a fragment register has 32 bits") }
        self.ldmatrix(true)
    }
}
