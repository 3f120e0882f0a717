//! Any bytes as a module that the software device compiles.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Err(why) = fercuda_softgpu::control::compile_ptx(&String::from_utf8_lossy(bytes)) {
        assert!(!why.is_empty());
    }
});
