//! Python's C interface, as far as it takes to run a few statements in an interpreter that the
//! process happens to have.
//!
//! Invariants: nothing here is linked to Python; a process without an interpreter has no
//! [`Python`]. Only documented functions are called. Functions that may end the calling thread
//! (an interpreter that shuts down does that to threads which come for it) are called from frames
//! without anything to drop.

use core::ffi::{CStr, c_char, c_int, c_void};

type Object = *mut c_void;

/// `Py_file_input`: statements, and no value.
const FILE_INPUT: c_int = 257;

/// Functions of the interpreter that the process has loaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interpreter {
    is_initialized: unsafe extern "C-unwind" fn() -> c_int,
    is_finalizing: Option<unsafe extern "C-unwind" fn() -> c_int>,
    ensure: unsafe extern "C-unwind" fn() -> c_int,
    release: unsafe extern "C-unwind" fn(c_int),
    own_state: unsafe extern "C-unwind" fn() -> *mut c_void,
    attached_state: unsafe extern "C-unwind" fn() -> *mut c_void,
    compile: unsafe extern "C-unwind" fn(*const c_char, *const c_char, c_int) -> Object,
    evaluate: unsafe extern "C-unwind" fn(Object, Object, Object) -> Object,
    new_dictionary: unsafe extern "C-unwind" fn() -> Object,
    drop_reference: unsafe extern "C-unwind" fn(Object),
    take_error: unsafe extern "C-unwind" fn(*mut Object, *mut Object, *mut Object),
    set_error: unsafe extern "C-unwind" fn(Object, Object, Object),
    clear_error: unsafe extern "C-unwind" fn(),
}

/// What [`Python::attach`] returns and [`Python::detach`] takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttachedThread(c_int);

/// The first of these names that any library of the process exports to all others.
///
/// # Safety
/// `F` is the type of the function that has these names.
unsafe fn function<F: Copy>(names: &[&CStr]) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    let found = names.iter().find_map(|name| {
        // SAFETY: a name, and the handle that searches the program and its libraries.
        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    })?;
    // SAFETY: of the same size, checked above; the caller knows the type.
    Some(unsafe { core::mem::transmute_copy(&found) })
}

impl Interpreter {
    /// The interpreter of this process, if it has one that is initialized and not shutting down.
    /// Takes the loader's lock.
    pub(super) fn find() -> Option<Interpreter> {
        // SAFETY: the types are those of Python's documented functions.
        let python = unsafe {
            Interpreter {
                is_initialized: function(&[c"Py_IsInitialized"])?,
                is_finalizing: function(&[c"Py_IsFinalizing", c"_Py_IsFinalizing"]),
                ensure: function(&[c"PyGILState_Ensure"])?,
                release: function(&[c"PyGILState_Release"])?,
                own_state: function(&[c"PyGILState_GetThisThreadState"])?,
                attached_state: function(&[
                    c"PyThreadState_GetUnchecked",
                    c"_PyThreadState_UncheckedGet",
                ])?,
                compile: function(&[c"Py_CompileString"])?,
                evaluate: function(&[c"PyEval_EvalCode"])?,
                new_dictionary: function(&[c"PyDict_New"])?,
                drop_reference: function(&[c"Py_DecRef"])?,
                take_error: function(&[c"PyErr_Fetch"])?,
                set_error: function(&[c"PyErr_Restore"])?,
                clear_error: function(&[c"PyErr_Clear"])?,
            }
        };
        python.is_running().then_some(python)
    }

    /// Whether it is initialized and not shutting down.
    pub(super) fn is_running(&self) -> bool {
        // SAFETY: both may be called at any time, by any thread.
        unsafe {
            (self.is_initialized)() != 0 && self.is_finalizing.is_none_or(|asked| asked() == 0)
        }
    }

    /// Whether the calling thread holds the interpreter (has an attached thread state).
    pub(super) fn is_attached(&self) -> bool {
        // SAFETY: both may be called at any time, by any thread. Before Python 3.12 the second
        // returns the state of whichever thread holds the interpreter, so the two are compared.
        unsafe {
            let own = (self.own_state)();
            !own.is_null() && own == (self.attached_state)()
        }
    }

    /// Waits, without a bound, until the calling thread holds the interpreter.
    ///
    /// # Safety
    /// The thread does not hold it. It may be ended here: nothing below it on the stack has
    /// anything to drop.
    pub(super) unsafe fn attach(&self) -> AttachedThread {
        // SAFETY: the interpreter is initialized ([`Interpreter::find`]).
        AttachedThread(unsafe { (self.ensure)() })
    }

    /// Lets go of the interpreter.
    ///
    /// # Safety
    /// `attached` is what the last [`Python::attach`] of this thread returned.
    pub(super) unsafe fn detach(&self, attached: AttachedThread) {
        // SAFETY: the caller's promise.
        unsafe { (self.release)(attached.0) }
    }

    /// Runs statements in a namespace of their own; returns false if they raised. An exception
    /// that the thread has raised before stays as it was.
    ///
    /// # Safety
    /// The calling thread holds the interpreter. It may be ended here: nothing below it on the
    /// stack has anything to drop.
    pub(super) unsafe fn run(&self, statements: &CStr) -> bool {
        let (mut kind, mut value, mut trace) = NO_ERROR;
        // SAFETY: the thread holds the interpreter; the names outlive the calls; every reference
        // that was made is dropped once, and `PyErr_Restore` takes those of `PyErr_Fetch`.
        unsafe {
            (self.take_error)(&mut kind, &mut value, &mut trace);
            let mut has_run = false;
            let names = (self.new_dictionary)();
            if !names.is_null() {
                let code = (self.compile)(statements.as_ptr(), c"<fercuda>".as_ptr(), FILE_INPUT);
                if !code.is_null() {
                    let result = (self.evaluate)(code, names, names);
                    has_run = !result.is_null();
                    if has_run {
                        (self.drop_reference)(result);
                    }
                    (self.drop_reference)(code);
                }
                (self.drop_reference)(names);
            }
            (self.clear_error)();
            (self.set_error)(kind, value, trace);
            has_run
        }
    }
}

const NO_ERROR: (Object, Object, Object) = (
    core::ptr::null_mut(),
    core::ptr::null_mut(),
    core::ptr::null_mut(),
);
