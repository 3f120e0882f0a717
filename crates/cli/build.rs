//! Passes the target triple of the build to the program.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if let Ok(target) = std::env::var("TARGET") {
        println!("cargo::rustc-env=BUILD_TARGET={target}");
    }
}
