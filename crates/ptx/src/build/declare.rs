//! Parameters and variables of a kernel.

use super::error::BuildError;
use super::kernel::KernelBuilder;
use super::ptr::{Const, Global, Local, Ptr, Shared, Space};
use super::reg::Reg;
use super::state::{EmittedLine, Name, is_identifier, w};
use super::types::{ConstElement, MemoryElement, Scalar, Type};
use crate::ast::{self, AddrBase, Init, Linkage, Operand, PtrAttr, Stmt, Sym};
use crate::words::{self, Mod, Op, ScalarType, Word};

/// Static shared memory a kernel may have, in bytes.
pub const STATIC_SHARED_LIMIT: u64 = 48 * 1024;

/// Parameter bytes a kernel may have.
const PARAM_LIMIT: u64 = 4096;

impl KernelBuilder {
    // Parameters.

    fn add_param(&self, name: &str, ty: ScalarType, bytes: u32, ptr: Option<PtrAttr>) -> Sym {
        let sym = self.object(name);
        let mut s = self.state.borrow_mut();
        s.param_bytes = s.param_bytes.next_multiple_of(u64::from(bytes)) + u64::from(bytes);
        let bytes = s.param_bytes;
        if bytes > PARAM_LIMIT {
            s.fail(|kernel| BuildError::TooManyParams {
                kernel: kernel.to_owned(),
                bytes,
                limit: PARAM_LIMIT,
            });
        }
        s.params.push(ast::Var {
            linkage: Linkage::Local,
            space: words::Space::Param,
            align: None,
            vector: 1,
            ty,
            name: sym,
            dims: Vec::new(),
            init: None,
            ptr,
            attributes: Vec::new(),
        });
        sym
    }

    /// The name of a parameter or variable: given once, and a legal identifier.
    fn object(&self, name: &str) -> Sym {
        let mut s = self.state.borrow_mut();
        if !is_identifier(name) {
            s.fail(|kernel| BuildError::BadName {
                kernel: kernel.to_owned(),
                name: name.to_owned(),
            });
        } else if s.objects.contains_key(name) || s.entry == name {
            s.fail(|kernel| BuildError::DuplicateName {
                kernel: kernel.to_owned(),
                name: name.to_owned(),
            });
        }
        let sym = s.name(Name::Object(name.to_owned()));
        s.objects.insert(name.to_owned(), sym);
        sym
    }

    /// The next parameter: a number, loaded into a register named after it.
    pub fn param<T: Scalar>(&self, name: &str) -> Reg<'_, T> {
        let sym = self.add_param(name, T::REG, T::BYTES, None);
        let address = Operand::Address {
            base: AddrBase::Name(sym),
            offset: 0,
        };
        self.op::<T>(
            Op::Ld,
            vec![w(Word::Param), Mod::Type(T::REG)],
            vec![address],
        )
        .named(name)
    }

    /// The next parameter: a pointer to device memory, given as a 64-bit address.
    pub fn param_ptr<T: MemoryElement>(&self, name: &str) -> Ptr<'_, Global, T> {
        self.param_ptr_aligned(name, T::BYTES)
    }

    /// As [`KernelBuilder::param_ptr`], aligned to `align_bytes` by contract: vector accesses need
    /// it.
    pub fn param_ptr_aligned<T: MemoryElement>(
        &self,
        name: &str,
        align_bytes: u32,
    ) -> Ptr<'_, Global, T> {
        let attr = PtrAttr {
            space: Some(words::Space::Global),
            align: Some(align_bytes),
        };
        let sym = self.add_param(name, ScalarType::U64, 8, Some(attr));
        let address = Operand::Address {
            base: AddrBase::Name(sym),
            offset: 0,
        };
        let generic = self.op::<u64>(
            Op::Ld,
            vec![w(Word::Param), Mod::Type(ScalarType::U64)],
            vec![address],
        );
        let base = self
            .op::<u64>(
                Op::Cvta,
                vec![w(Word::To), w(Word::Global), Mod::Type(ScalarType::U64)],
                vec![generic.operand()],
            )
            .named(name);
        Ptr::new(self, base.sym, 0)
    }

    // Variables.

    fn array<T: MemoryElement>(
        &self,
        name: &str,
        space: words::Space,
        len: u64,
        init: Option<Init>,
    ) -> (Sym, ast::Var) {
        let sym = self.object(name);
        let align = if space == words::Space::Shared {
            16
        } else {
            T::BYTES
        };
        let var = ast::Var {
            linkage: Linkage::Local,
            space,
            align: Some(align),
            vector: 1,
            ty: T::MEM,
            name: sym,
            dims: vec![Some(len)],
            init,
            ptr: None,
            attributes: Vec::new(),
        };
        (sym, var)
    }

    fn declare(&self, var: ast::Var) {
        let mut s = self.state.borrow_mut();
        s.body.push(EmittedLine {
            stmt: Stmt::Var(var),
            dsts: 0,
            sets: false,
        });
    }

    fn base_of<S: Space, T: MemoryElement>(&self, sym: Sym, name: &str) -> Ptr<'_, S, T> {
        let base = self
            .op::<S::Address>(
                Op::Mov,
                vec![Mod::Type(<S::Address as Type>::TY)],
                vec![Operand::Name(sym)],
            )
            .named(name);
        Ptr::new(self, base.sym, 0)
    }

    /// An array of `len` elements that the threads of a block share, aligned to 16 bytes.
    pub fn shared<T: MemoryElement>(&self, name: &str, len: u32) -> Ptr<'_, Shared, T> {
        let (sym, var) = self.array::<T>(name, words::Space::Shared, u64::from(len), None);
        self.declare(var);
        {
            let mut s = self.state.borrow_mut();
            s.shared_bytes =
                s.shared_bytes.next_multiple_of(16) + u64::from(len) * u64::from(T::BYTES);
            let bytes = s.shared_bytes;
            if bytes > STATIC_SHARED_LIMIT {
                s.fail(|kernel| BuildError::TooMuchShared {
                    kernel: kernel.to_owned(),
                    bytes,
                    limit: STATIC_SHARED_LIMIT,
                });
            }
        }
        self.base_of(sym, name)
    }

    /// The block's dynamic shared memory, sized at launch, aligned to 16 bytes.
    pub fn dynamic_shared<T: MemoryElement>(&self, name: &str) -> Ptr<'_, Shared, T> {
        let (sym, mut var) = self.array::<T>(name, words::Space::Shared, 0, None);
        var.linkage = Linkage::Extern;
        var.dims = vec![None];
        self.state.borrow_mut().globals.push(var);
        self.base_of(sym, name)
    }

    /// An array of `len` elements of the thread's own.
    pub fn local<T: MemoryElement>(&self, name: &str, len: u32) -> Ptr<'_, Local, T> {
        let (sym, var) = self.array::<T>(name, words::Space::Local, u64::from(len), None);
        self.declare(var);
        self.base_of(sym, name)
    }

    /// An array in constant memory with these values, at module scope.
    pub fn constant<T: ConstElement>(&self, name: &str, values: &[T]) -> Ptr<'_, Const, T> {
        let init = Init::List(values.iter().map(|&v| Init::Imm(v.imm())).collect());
        let (sym, var) =
            self.array::<T>(name, words::Space::Const, values.len() as u64, Some(init));
        self.state.borrow_mut().globals.push(var);
        self.base_of(sym, name)
    }
}
