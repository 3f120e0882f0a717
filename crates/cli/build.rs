//! Tells the program which target it was built for.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if let Ok(target) = std::env::var("TARGET") {
        println!("cargo::rustc-env=BUILD_TARGET={target}");
    }
}
