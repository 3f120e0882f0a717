//! Tables of a library's functions, each resolved when it is first called.
//!
//! Invariant: a slot is empty or holds the address of its symbol in a library that is never
//! unloaded.

/// Declares a table of functions: `name (major, minor) (arguments) -> result;`, where the version
/// is the library's first that has the function.
macro_rules! library_functions {
    (
        $(#[$doc:meta])*
        $table:ident, $function:ident {
            $($name:ident ($major:literal, $minor:literal) ($($arg:ident: $ty:ty),* $(,)?)
                -> $ret:ty;)*
        }
    ) => {
        #[expect(non_camel_case_types, reason = "the library's own spelling")]
        #[allow(clippy::enum_variant_names, reason = "a library has one prefix or more")]
        #[derive(Clone, Copy)]
        enum $function { $($name,)* }

        $(#[$doc])*
        #[derive(Debug)]
        pub(super) struct $table {
            library: $crate::library::OpenedLibrary,
            slots: [::std::sync::atomic::AtomicPtr<::std::ffi::c_void>;
                [$($function::$name),*].len()],
        }

        impl $table {
            pub(super) fn new(library: $crate::library::OpenedLibrary) -> Self {
                Self {
                    library,
                    slots: [const {
                        ::std::sync::atomic::AtomicPtr::new(::std::ptr::null_mut())
                    }; [$($function::$name),*].len()],
                }
            }

            /// The library that the functions are in.
            pub(super) fn library(&self) -> &$crate::library::OpenedLibrary {
                &self.library
            }
        }

        #[expect(non_snake_case, reason = "the library's own spelling")]
        impl $table {
            $(
                /// # Safety
                /// The arguments satisfy the requirements of the library's reference.
                #[allow(clippy::too_many_arguments, reason = "some of the library's have many")]
                unsafe fn $name(&self, $($arg: $ty),*) -> $crate::error::Result<$ret> {
                    let address = self.library.resolve(
                        &self.slots[$function::$name as usize],
                        stringify!($name),
                        $crate::version::LibraryVersion::new($major, $minor, 0),
                    )?;
                    // SAFETY: the address of a function of this name, which has this signature in
                    // every version of the library that is accepted.
                    let function = unsafe {
                        ::std::mem::transmute::<
                            ::std::ptr::NonNull<::std::ffi::c_void>,
                            unsafe extern "C" fn($($ty),*) -> $ret,
                        >(address)
                    };
                    // SAFETY: the caller's contract.
                    Ok(unsafe { function($($arg),*) })
                }
            )*
        }
    };
}

pub(crate) use library_functions;
