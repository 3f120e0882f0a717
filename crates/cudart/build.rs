//! SONAME of the library, and the version of its symbols: those of NVIDIA's library of CUDA 13.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcudart.so.13");
    // Programs that were linked to NVIDIA's library ask for its symbols' version, which is its
    // SONAME. Only GNU's linker gives symbols that version.
    println!("cargo::rustc-cdylib-link-arg=-fuse-ld=bfd");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--default-symver");
    // Threads of the driver may call back into it after a `dlclose`.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
