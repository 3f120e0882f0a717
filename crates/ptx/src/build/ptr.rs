//! Typed pointers, loads, stores and atomics.
//!
//! A [`Ptr`] is a register and a constant offset, so stepping by constants costs nothing.
//! Shared, local and constant memory have 32-bit addresses within their window.
//!
//! Invariant: an index is in elements, never in bytes.

use std::marker::PhantomData;
use std::ops;

use super::error::BuildError;
use super::kernel::KernelBuilder;
use super::reg::{Arg, Pred, Reg, RegVar, Src};
use super::state::{Name, w};
use super::types::{
    AtomicAdd, AtomicMinMax, AtomicSwap, Int, MemoryElement, Scalar, SealedType, Type,
};
use crate::ast::{AddrBase, Guard, Imm, Operand, Sym};
use crate::words::{Mod, Op, ScalarType, Word};

/// A state space that pointers point into.
pub trait Space: SealedType + Copy + 'static {
    /// Its word in `ld` and `st`; none for generic addresses.
    const WORD: Option<Word>;
    /// Register of an address.
    type Address: Int;
}

/// A space that can be written.
pub trait Writable: Space {}

/// A space that atomics work in.
pub trait Atomic: Writable {}

macro_rules! spaces {
    ($($(#[$doc:meta])* $name:ident $word:expr, $address:ty: $($tr:ident)*;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        pub enum $name {}
        impl SealedType for $name {}
        impl Space for $name {
            const WORD: Option<Word> = $word;
            type Address = $address;
        }
        $(impl $tr for $name {})*
    )*};
}

spaces! {
    /// Device memory.
    Global Some(Word::Global), u64: Writable Atomic;
    /// The block's own memory.
    Shared Some(Word::Shared), u32: Writable Atomic;
    /// The thread's own memory.
    Local Some(Word::Local), u32: Writable;
    /// Read-only memory of the module.
    Const Some(Word::Const), u32:;
    /// Any of them: the hardware finds out which.
    Generic None, u64: Writable Atomic;
}

/// A pointer to elements of type `T` in space `S`.
pub struct Ptr<'k, S, T> {
    kernel: &'k KernelBuilder,
    base: Sym,
    offset_bytes: i64,
    ty: PhantomData<(S, T)>,
}

impl<S, T> Clone for Ptr<'_, S, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<S, T> Copy for Ptr<'_, S, T> {}

/// An index of a pointer in space `S`, in elements.
pub trait Index<'k, S: Space>: Copy {
    /// `base + self * bytes`.
    fn add_to(self, base: Reg<'k, S::Address>, bytes: u32) -> Reg<'k, S::Address>;
    /// If it is a constant.
    fn constant(self) -> Option<i64> {
        None
    }
}

macro_rules! index_64 {
    ($($space:ty)*) => {$(
        impl<'k> Index<'k, $space> for Reg<'k, u32> {
            fn add_to(self, base: Reg<'k, u64>, bytes: u32) -> Reg<'k, u64> {
                self.mul_wide_add(bytes, base)
            }
        }
        impl<'k> Index<'k, $space> for Reg<'k, i32> {
            fn add_to(self, base: Reg<'k, u64>, bytes: u32) -> Reg<'k, u64> {
                let k = base.kernel;
                let operands = vec![k.src(Src::of(self)), imm(i64::from(bytes)), base.operand()];
                k.op(Op::Mad, vec![w(Word::Wide), Mod::Type(ScalarType::S32)], operands)
            }
        }
        impl<'k> Index<'k, $space> for Reg<'k, u64> {
            fn add_to(self, base: Reg<'k, u64>, bytes: u32) -> Reg<'k, u64> {
                self.mul_add(u64::from(bytes), base)
            }
        }
    )*};
}
index_64! { Global Generic }

macro_rules! index_32 {
    ($($space:ty)*) => {$(
        impl<'k> Index<'k, $space> for Reg<'k, u32> {
            fn add_to(self, base: Reg<'k, u32>, bytes: u32) -> Reg<'k, u32> {
                self.mul_add(bytes, base)
            }
        }
        impl<'k> Index<'k, $space> for Reg<'k, i32> {
            fn add_to(self, base: Reg<'k, u32>, bytes: u32) -> Reg<'k, u32> {
                let k = base.kernel;
                let operands = vec![k.src(Src::of(self)), imm(i64::from(bytes)), base.operand()];
                k.op(Op::Mad, vec![w(Word::Lo), Mod::Type(ScalarType::S32)], operands)
            }
        }
    )*};
}
index_32! { Shared Local Const }

impl<'k, S: Space, T: Int> Index<'k, S> for RegVar<'k, T>
where
    Reg<'k, T>: Index<'k, S>,
{
    fn add_to(self, base: Reg<'k, S::Address>, bytes: u32) -> Reg<'k, S::Address> {
        (*self).add_to(base, bytes)
    }
}

impl<'k, S: Space> Index<'k, S> for u32 {
    fn add_to(self, base: Reg<'k, S::Address>, _: u32) -> Reg<'k, S::Address> {
        base
    }
    fn constant(self) -> Option<i64> {
        Some(i64::from(self))
    }
}

fn imm(value: i64) -> Operand {
    Operand::Imm(Imm::Int {
        value,
        unsigned: false,
    })
}

/// The cache hint of a load or store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cache {
    /// At all levels.
    All,
    /// In L2 only.
    L2,
    /// Once: evict first.
    Streaming,
}

impl Cache {
    fn load(self) -> Word {
        match self {
            Cache::All => Word::Ca,
            Cache::L2 => Word::Cg,
            Cache::Streaming => Word::Cs,
        }
    }

    fn store(self) -> Word {
        match self {
            Cache::All => Word::Wb,
            Cache::L2 => Word::Cg,
            Cache::Streaming => Word::Cs,
        }
    }
}

impl<'k, S: Space, T: MemoryElement> Ptr<'k, S, T> {
    pub(crate) fn new(kernel: &'k KernelBuilder, base: Sym, offset_bytes: i64) -> Self {
        Ptr {
            kernel,
            base,
            offset_bytes,
            ty: PhantomData,
        }
    }

    /// From an address computed by other means.
    pub fn from_address(address: Reg<'k, S::Address>) -> Self {
        Ptr::new(address.kernel, address.sym, 0)
    }

    /// The kernel it belongs to.
    #[must_use]
    pub fn kernel(self) -> &'k KernelBuilder {
        self.kernel
    }

    fn base(self) -> Reg<'k, S::Address> {
        Reg {
            kernel: self.kernel,
            sym: self.base,
            ty: PhantomData,
        }
    }

    /// The address in a register.
    #[must_use]
    pub fn address(self) -> Reg<'k, S::Address> {
        if self.offset_bytes == 0 {
            return self.base();
        }
        let operands = vec![self.base().operand(), imm(self.offset_bytes)];
        self.kernel
            .op(Op::Add, vec![Mod::Type(<S::Address as Type>::TY)], operands)
    }

    /// A pointer to element `i`.
    #[must_use]
    pub fn index(self, i: impl Index<'k, S>) -> Self {
        if let Some(n) = i.constant() {
            return self.offset(n);
        }
        let base = i.add_to(self.base(), T::BYTES);
        Ptr::new(self.kernel, base.sym, self.offset_bytes)
    }

    /// A pointer `elements` further on, or back.
    #[must_use]
    pub fn offset(self, elements: i64) -> Self {
        let offset = elements
            .checked_mul(i64::from(T::BYTES))
            .and_then(|b| b.checked_add(self.offset_bytes));
        match offset {
            Some(o) if i32::try_from(o).is_ok() => Ptr::new(self.kernel, self.base, o),
            _ => {
                self.kernel.fail(|kernel| BuildError::OffsetTooLarge {
                    kernel: kernel.to_owned(),
                    elements,
                });
                self
            }
        }
    }

    /// The same place as elements of another type.
    #[must_use]
    pub fn cast<U: MemoryElement>(self) -> Ptr<'k, S, U> {
        Ptr::new(self.kernel, self.base, self.offset_bytes)
    }

    /// Names the register of the address in the listing.
    #[must_use]
    pub fn named(self, name: impl Into<String>) -> Self {
        let mut s = self.kernel.state.borrow_mut();
        if let Some(Name::Reg { wanted, .. }) = s.names.get_mut(self.base.0 as usize) {
            *wanted = Some(name.into());
        }
        self
    }

    /// A pointer variable that begins here.
    pub fn var(self, name: impl Into<String>) -> PtrVar<'k, S, T> {
        let address = self.kernel.var::<S::Address>(name, self.address());
        PtrVar {
            ptr: Ptr::new(self.kernel, address.sym, 0),
            address,
        }
    }

    pub(crate) fn bracket(self) -> Operand {
        Operand::Address {
            base: AddrBase::Name(self.base),
            offset: self.offset_bytes,
        }
    }

    fn words(self, extra: &[Mod]) -> Vec<Mod> {
        let mut m: Vec<Mod> = S::WORD.map(w).into_iter().collect();
        m.extend_from_slice(extra);
        m
    }

    fn load_words(self, mods: Vec<Mod>) -> Reg<'k, T::Value> {
        self.kernel.op(Op::Ld, mods, vec![self.bracket()])
    }

    /// The element here.
    #[must_use]
    pub fn load(self) -> Reg<'k, T::Value> {
        self.load_words(self.words(&[Mod::Type(T::MEM)]))
    }

    /// The element here where `pred` holds, `otherwise` elsewhere, without a branch: where it
    /// does not hold, memory is not touched.
    #[must_use]
    pub fn load_if(self, pred: Pred<'k>, otherwise: impl Arg<'k, T::Value>) -> Reg<'k, T::Value> {
        let k = self.kernel;
        let d = k.value::<T::Value>(otherwise);
        if let Operand::Name(sym) = k.src(Src::of(pred)) {
            let guard = Guard {
                pred: sym,
                negated: false,
            };
            let operands = vec![d.operand(), self.bracket()];
            k.emit_guarded(
                Some(guard),
                Op::Ld,
                self.words(&[Mod::Type(T::MEM)]),
                1,
                operands,
            );
        }
        d
    }

    /// `N` elements from here in one access; `N` is 2 or 4, at most 16 bytes, aligned to its size.
    #[must_use]
    pub fn load_vec<const N: usize>(self) -> [Reg<'k, T::Value>; N] {
        const { vector_ok(N, T::BYTES) }
        self.load_vector(&[])
    }

    fn load_vector<const N: usize>(self, extra: &[Mod]) -> [Reg<'k, T::Value>; N] {
        let d = std::array::from_fn(|_| self.kernel.fresh::<T::Value>());
        let list = Operand::Vector(d.iter().map(|r| r.operand()).collect());
        let words = self.words(&[extra, &[vector_word(N), Mod::Type(T::MEM)]].concat());
        self.kernel
            .emit(Op::Ld, words, 1, vec![list, self.bracket()]);
        d
    }

    /// Every access is made, in order, as written.
    #[must_use]
    pub fn load_volatile(self) -> Reg<'k, T::Value> {
        let mut words = vec![w(Word::Volatile)];
        words.extend(self.words(&[Mod::Type(T::MEM)]));
        self.load_words(words)
    }
}

const fn vector_ok(n: usize, bytes: u32) {
    assert!(n == 2 || n == 4, "a vector has 2 or 4 elements");
    assert!(n * bytes as usize <= 16, "a vector has at most 16 bytes");
}

fn vector_word(n: usize) -> Mod {
    w(if n == 2 { Word::V2 } else { Word::V4 })
}

impl<'k, T: MemoryElement> Ptr<'k, Global, T> {
    /// The element here, by the read-only path: nothing may write it while the kernel runs.
    #[must_use]
    pub fn load_readonly(self) -> Reg<'k, T::Value> {
        self.load_words(self.words(&[w(Word::Nc), Mod::Type(T::MEM)]))
    }

    /// As [`Ptr::load_vec`], by the read-only path.
    #[must_use]
    pub fn load_vec_readonly<const N: usize>(self) -> [Reg<'k, T::Value>; N] {
        const { vector_ok(N, T::BYTES) }
        self.load_vector(&[w(Word::Nc)])
    }

    /// The element here, with a cache hint.
    #[must_use]
    pub fn load_cached(self, cache: Cache) -> Reg<'k, T::Value> {
        self.load_words(self.words(&[w(cache.load()), Mod::Type(T::MEM)]))
    }

    /// As [`Ptr::load_vec`], with a cache hint.
    #[must_use]
    pub fn load_vec_cached<const N: usize>(self, cache: Cache) -> [Reg<'k, T::Value>; N] {
        const { vector_ok(N, T::BYTES) }
        self.load_vector(&[w(cache.load())])
    }

    /// Writes the element here, with a cache hint.
    pub fn store_cached(self, cache: Cache, value: impl Arg<'k, T::Value>) {
        let value = self.kernel.src(value.src());
        self.store_words(self.words(&[w(cache.store()), Mod::Type(T::MEM)]), value);
    }

    /// As [`Ptr::store_vec`], with a cache hint.
    pub fn store_vec_cached<const N: usize>(self, cache: Cache, values: [Reg<'k, T::Value>; N]) {
        const { vector_ok(N, T::BYTES) }
        self.store_vector(&[w(cache.store())], values);
    }

    /// The element here, before everything that this thread reads later, on the whole device.
    #[must_use]
    pub fn load_acquire(self) -> Reg<'k, T::Value> {
        let mut words = vec![w(Word::Acquire), w(Word::Gpu)];
        words.extend(self.words(&[Mod::Type(T::MEM)]));
        self.load_words(words)
    }

    /// Writes the element here, after everything that this thread wrote before, on the whole
    /// device.
    pub fn store_release(self, value: impl Arg<'k, T::Value>) {
        let value = self.kernel.src(value.src());
        let mut words = vec![w(Word::Release), w(Word::Gpu)];
        words.extend(self.words(&[Mod::Type(T::MEM)]));
        self.store_words(words, value);
    }

    /// The element here, before everything that this thread reads later, for the host and other
    /// devices too.
    #[must_use]
    pub fn load_acquire_system(self) -> Reg<'k, T::Value> {
        let mut words = vec![w(Word::Acquire), w(Word::Sys)];
        words.extend(self.words(&[Mod::Type(T::MEM)]));
        self.load_words(words)
    }

    /// Writes the element here, after everything that this thread wrote before, for the host and
    /// other devices too.
    pub fn store_release_system(self, value: impl Arg<'k, T::Value>) {
        let value = self.kernel.src(value.src());
        let mut words = vec![w(Word::Release), w(Word::Sys)];
        words.extend(self.words(&[Mod::Type(T::MEM)]));
        self.store_words(words, value);
    }

    /// As a generic pointer.
    #[must_use]
    pub fn generic(self) -> Ptr<'k, Generic, T> {
        let address = self.address();
        let words = vec![w(Word::Global), Mod::Type(ScalarType::U64)];
        Ptr::from_address(self.kernel.op(Op::Cvta, words, vec![address.operand()]))
    }
}

impl<'k, T: MemoryElement> Ptr<'k, Shared, T> {
    /// As a generic pointer.
    #[must_use]
    pub fn generic(self) -> Ptr<'k, Generic, T> {
        let address = self.address().to::<u64>();
        let words = vec![w(Word::Shared), Mod::Type(ScalarType::U64)];
        Ptr::from_address(self.kernel.op(Op::Cvta, words, vec![address.operand()]))
    }
}

impl<S: Space, T: MemoryElement> Ptr<'_, S, T> {
    fn store_words(self, mods: Vec<Mod>, value: Operand) {
        self.kernel
            .emit(Op::St, mods, 0, vec![self.bracket(), value]);
    }
}

impl<'k, S: Writable, T: MemoryElement> Ptr<'k, S, T> {
    /// Writes the element here.
    pub fn store(self, value: impl Arg<'k, T::Value>) {
        let value = self.kernel.src(value.src());
        self.store_words(self.words(&[Mod::Type(T::MEM)]), value);
    }

    /// Writes the element here where `pred` holds, without a branch.
    pub fn store_if(self, pred: Pred<'k>, value: impl Arg<'k, T::Value>) {
        let k = self.kernel;
        let value = k.src(value.src());
        if let Operand::Name(sym) = k.src(Src::of(pred)) {
            let guard = Guard {
                pred: sym,
                negated: false,
            };
            k.emit_guarded(
                Some(guard),
                Op::St,
                self.words(&[Mod::Type(T::MEM)]),
                0,
                vec![self.bracket(), value],
            );
        }
    }

    /// Writes `N` elements from here in one access; `N` is 2 or 4, at most 16 bytes, aligned to its
    /// size.
    pub fn store_vec<const N: usize>(self, values: [Reg<'k, T::Value>; N]) {
        const { vector_ok(N, T::BYTES) }
        self.store_vector(&[], values);
    }

    fn store_vector<const N: usize>(self, extra: &[Mod], values: [Reg<'k, T::Value>; N]) {
        let list = Operand::Vector(
            values
                .iter()
                .map(|&v| self.kernel.src(Src::of(v)))
                .collect(),
        );
        let words = self.words(&[extra, &[vector_word(N), Mod::Type(T::MEM)]].concat());
        self.store_words(words, list);
    }

    /// Every access is made, in order, as written.
    pub fn store_volatile(self, value: impl Arg<'k, T::Value>) {
        let value = self.kernel.src(value.src());
        let mut words = vec![w(Word::Volatile)];
        words.extend(self.words(&[Mod::Type(T::MEM)]));
        self.store_words(words, value);
    }
}

/// The type of an atomic addition: integers as they are, floats as they are.
fn atomic_type<T: MemoryElement>() -> Mod {
    Mod::Type(T::MEM)
}

impl<'k, S: Atomic, T: MemoryElement> Ptr<'k, S, T> {
    fn atomic<U: Scalar>(self, how: Word, ty: Mod, values: Vec<Operand>) -> Reg<'k, U> {
        let mut sources = vec![self.bracket()];
        sources.extend(values);
        self.kernel.op(Op::Atom, self.words(&[w(how), ty]), sources)
    }

    fn reduce(self, how: Word, ty: Mod, value: Operand) {
        self.kernel.emit(
            Op::Red,
            self.words(&[w(how), ty]),
            0,
            vec![self.bracket(), value],
        );
    }
}

impl<'k, S: Atomic, T: AtomicAdd> Ptr<'k, S, T> {
    /// Adds atomically; returns the old value.
    pub fn atomic_add(self, value: impl Arg<'k, T>) -> Reg<'k, T> {
        let value = self.kernel.src(value.src());
        self.atomic(Word::Add, atomic_type::<T>(), vec![value])
    }

    /// Adds atomically.
    pub fn reduce_add(self, value: impl Arg<'k, T>) {
        let value = self.kernel.src(value.src());
        self.reduce(Word::Add, atomic_type::<T>(), value);
    }
}

impl<'k, S: Atomic, T: AtomicMinMax> Ptr<'k, S, T> {
    /// Keeps the smaller, atomically; returns the old value.
    pub fn atomic_min(self, value: impl Arg<'k, T>) -> Reg<'k, T> {
        let value = self.kernel.src(value.src());
        self.atomic(Word::Min, atomic_type::<T>(), vec![value])
    }

    /// Keeps the larger, atomically; returns the old value.
    pub fn atomic_max(self, value: impl Arg<'k, T>) -> Reg<'k, T> {
        let value = self.kernel.src(value.src());
        self.atomic(Word::Max, atomic_type::<T>(), vec![value])
    }

    /// Ands bits, atomically; returns the old value.
    pub fn atomic_and(self, value: impl Arg<'k, T>) -> Reg<'k, T> {
        let value = self.kernel.src(value.src());
        self.atomic(Word::And, Mod::Type(T::BITS), vec![value])
    }

    /// Ors bits, atomically; returns the old value.
    pub fn atomic_or(self, value: impl Arg<'k, T>) -> Reg<'k, T> {
        let value = self.kernel.src(value.src());
        self.atomic(Word::Or, Mod::Type(T::BITS), vec![value])
    }

    /// Xors bits, atomically; returns the old value.
    pub fn atomic_xor(self, value: impl Arg<'k, T>) -> Reg<'k, T> {
        let value = self.kernel.src(value.src());
        self.atomic(Word::Xor, Mod::Type(T::BITS), vec![value])
    }
}

impl<'k, S: Atomic, T: AtomicSwap> Ptr<'k, S, T> {
    /// Replaces, atomically; returns the old value.
    pub fn atomic_exchange(self, value: impl Arg<'k, T>) -> Reg<'k, T> {
        let value = self.kernel.src(value.src());
        self.atomic(Word::Exch, Mod::Type(T::BITS), vec![value])
    }

    /// Replaces if it equals `expected` bit by bit, atomically; returns the old value.
    pub fn atomic_compare_swap(
        self,
        expected: impl Arg<'k, T>,
        value: impl Arg<'k, T>,
    ) -> Reg<'k, T> {
        let (expected, value) = (
            self.kernel.src(expected.src()),
            self.kernel.src(value.src()),
        );
        self.atomic(Word::Cas, Mod::Type(T::BITS), vec![expected, value])
    }
}

impl<'k, S: Atomic> Ptr<'k, S, u32> {
    /// `v >= limit ? 0 : v + 1`, atomically; returns the old value.
    pub fn atomic_increment(self, limit: impl Arg<'k, u32>) -> Reg<'k, u32> {
        let limit = self.kernel.src(limit.src());
        self.atomic(Word::Inc, Mod::Type(ScalarType::U32), vec![limit])
    }
}

/// A pointer that moves. Dereferences to its pointer.
pub struct PtrVar<'k, S: Space, T> {
    ptr: Ptr<'k, S, T>,
    address: RegVar<'k, S::Address>,
}

impl<S: Space, T> Clone for PtrVar<'_, S, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<S: Space, T> Copy for PtrVar<'_, S, T> {}

impl<'k, S: Space, T> ops::Deref for PtrVar<'k, S, T> {
    type Target = Ptr<'k, S, T>;
    fn deref(&self) -> &Ptr<'k, S, T> {
        &self.ptr
    }
}

impl<'k, S: Space, T: MemoryElement> PtrVar<'k, S, T> {
    /// Moves on by `i` elements.
    pub fn advance(self, i: impl Index<'k, S>) {
        self.address.set(self.ptr.index(i).address());
    }

    /// Points elsewhere.
    pub fn set(self, ptr: Ptr<'k, S, T>) {
        self.address.set(ptr.address());
    }
}
