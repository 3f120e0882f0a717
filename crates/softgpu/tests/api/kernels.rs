//! Modules, functions, launches, and what a fault does.

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

use fercuda_cuda_sys::types::*;

use crate::common::{Ctx, PTX, add, alloc, download, free, function, module, stream, upload};

#[test]
fn a_kernel_changes_memory_in_stream_order() {
    let _ctx = Ctx::new();
    let f = function(module(), c"add");
    let s = stream(1);
    let at = upload(&5u32.to_ne_bytes());
    for n in 1..=10 {
        add(f, at, n, s);
    }
    ok!(cuStreamSynchronize(s));
    assert_eq!(download(at, 4), 60u32.to_ne_bytes());
    free(at);
}

#[test]
fn parameters_may_come_packed() {
    let _ctx = Ctx::new();
    let f = function(module(), c"add");
    let at = upload(&1u32.to_ne_bytes());
    let mut packed = at.to_ne_bytes().to_vec();
    packed.extend(41u32.to_ne_bytes());
    let mut size = packed.len();
    let mut extra: [*mut c_void; 5] = [
        CU_LAUNCH_PARAM_BUFFER_POINTER,
        packed.as_mut_ptr().cast(),
        CU_LAUNCH_PARAM_BUFFER_SIZE,
        (&raw mut size).cast(),
        CU_LAUNCH_PARAM_END,
    ];
    ok!(cuLaunchKernel(
        f,
        1,
        1,
        1,
        1,
        1,
        1,
        0,
        CUstream::NULL,
        null_mut(),
        extra.as_mut_ptr()
    ));
    assert_eq!(download(at, 4), 42u32.to_ne_bytes());
    *std::hint::black_box(&mut size) = 8;
    let short = code!(cuLaunchKernel(
        f,
        1,
        1,
        1,
        1,
        1,
        1,
        0,
        CUstream::NULL,
        null_mut(),
        extra.as_mut_ptr()
    ));
    assert_eq!(short, CUresult::CUDA_ERROR_INVALID_VALUE);
    free(at);
}

#[test]
fn a_module_has_its_variables() {
    let _ctx = Ctx::new();
    let m = module();
    let (mut at, mut len) = (0, 0);
    ok!(cuModuleGetGlobal_v2(
        &mut at,
        &mut len,
        m,
        c"counter".as_ptr()
    ));
    assert_eq!((len, download(at, 4)), (4, 7u32.to_ne_bytes().to_vec()));
    fails!(
        CUDA_ERROR_NOT_FOUND,
        cuModuleGetGlobal_v2(&mut at, &mut len, m, c"none".as_ptr())
    );
    let mut f = CUfunction::NULL;
    fails!(
        CUDA_ERROR_NOT_FOUND,
        cuModuleGetFunction(&mut f, m, c"none".as_ptr())
    );
    let buffer = |at: CUdeviceptr| {
        let mut id = 0u64;
        let which = CUpointer_attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID;
        let answer = crate::code!(cuPointerGetAttribute((&raw mut id).cast(), which, at));
        (answer == CUresult::CUDA_SUCCESS).then_some(id)
    };
    let before = buffer(at);
    assert!(before.is_some());
    ok!(cuModuleUnload(m));
    // Another test may have memory there by now.
    assert_ne!(buffer(at), before);
    fails!(
        CUDA_ERROR_INVALID_HANDLE,
        cuModuleGetFunction(&mut f, m, c"add".as_ptr())
    );
}

/// Loads a module; gives the code and the error log.
fn load_and_log(text: &CStr) -> (CUresult, String) {
    let mut log = [1u8; 512];
    let mut options = [
        CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
        CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
    ];
    let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), log.len() as *mut c_void];
    let mut m = CUmodule::NULL;
    let code = code!(cuModuleLoadDataEx(
        &mut m,
        text.as_ptr().cast(),
        2,
        options.as_mut_ptr(),
        values.as_mut_ptr()
    ));
    let said = CStr::from_bytes_until_nul(&log).expect("a log ends");
    assert_eq!(values[1] as usize, said.count_bytes());
    (code, said.to_string_lossy().into_owned())
}

#[test]
fn broken_ptx_is_explained_in_the_error_log() {
    let _ctx = Ctx::new();
    let text = c".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() {\n  bogus.u32 %r1;\n}\n";
    let (code, said) = load_and_log(text);
    assert_eq!(code, CUresult::CUDA_ERROR_INVALID_PTX);
    assert!(said.contains("line 5") && said.contains("error"), "{said}");
}

#[test]
fn machine_code_has_no_device_here() {
    let _ctx = Ctx::new();
    let mut m = CUmodule::NULL;
    fails!(
        CUDA_ERROR_NO_BINARY_FOR_GPU,
        cuModuleLoadData(&mut m, c"\x7fELF\x02\x01".as_ptr().cast())
    );
    let fat = [
        0x50u8, 0xED, 0x55, 0xBA, 1, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    fails!(
        CUDA_ERROR_NO_BINARY_FOR_GPU,
        cuModuleLoadFatBinary(&mut m, fat.as_ptr().cast())
    );
    let mut bad = fat;
    bad[6] = 3;
    fails!(
        CUDA_ERROR_INVALID_IMAGE,
        cuModuleLoadFatBinary(&mut m, bad.as_ptr().cast())
    );
}

#[test]
fn a_library_s_kernel_runs_in_the_current_context() {
    let _ctx = Ctx::new();
    let mut library = CUlibrary::NULL;
    let none = null_mut;
    ok!(cuLibraryLoadData(
        &mut library,
        PTX.as_ptr().cast(),
        null_mut(),
        null_mut(),
        0,
        null_mut(),
        none(),
        0
    ));
    let mut count = 0;
    ok!(cuLibraryGetKernelCount(&mut count, library));
    assert_eq!(count, 4);
    let mut kernel = CUkernel::NULL;
    ok!(cuLibraryGetKernel(&mut kernel, library, c"add".as_ptr()));
    let at = upload(&1u32.to_ne_bytes());
    add(CUfunction(kernel.0), at, 2, CUstream::NULL);
    let mut f = CUfunction::NULL;
    ok!(cuKernelGetFunction(&mut f, kernel));
    add(f, at, 3, CUstream::NULL);
    assert_eq!(download(at, 4), 6u32.to_ne_bytes());
    let mut regs = 0;
    ok!(cuKernelGetAttribute(
        &mut regs,
        CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS,
        kernel,
        0
    ));
    assert!(regs > 0);
    ok!(cuLibraryUnload(library));
    fails!(
        CUDA_ERROR_INVALID_HANDLE,
        cuKernelGetFunction(&mut f, kernel)
    );
    free(at);
}

#[test]
fn linked_modules_are_one() {
    let _ctx = Ctx::new();
    let callee = c".version 8.0\n.target sm_80\n.address_size 64\n.visible .func (.param .b32 r) twice(.param .b32 x) {\n.reg .b32 %a;\nld.param.b32 %a, [x];\nadd.u32 %a, %a, %a;\nst.param.b32 [r], %a;\nret;\n}\n";
    let caller = c".version 8.0\n.target sm_80\n.address_size 64\n.extern .func (.param .b32 r) twice(.param .b32 x);\n.visible .entry k(.param .u64 p) {\n.reg .b64 %p;\n.reg .b32 %v;\n.param .b32 a;\n.param .b32 b;\nld.param.u64 %p, [p];\nld.global.u32 %v, [%p];\nst.param.b32 [a], %v;\ncall (b), twice, (a);\nld.param.b32 %v, [b];\nst.global.u32 [%p], %v;\nret;\n}\n";
    let mut link = CUlinkState::NULL;
    ok!(cuLinkCreate_v2(0, null_mut(), null_mut(), &mut link));
    for text in [caller, callee] {
        let data = text.as_ptr().cast_mut().cast();
        let len = text.to_bytes_with_nul().len();
        let kind = CUjitInputType::CU_JIT_INPUT_PTX;
        ok!(cuLinkAddData_v2(
            link,
            kind,
            data,
            len,
            c"part".as_ptr(),
            0,
            null_mut(),
            null_mut()
        ));
    }
    let (mut image, mut size) = (null_mut(), 0);
    ok!(cuLinkComplete(link, &mut image, &mut size));
    assert!(size > 0);
    // What was given out stays where it is until the link is destroyed.
    let (mut again, mut len) = (null_mut(), 0);
    ok!(cuLinkComplete(link, &mut again, &mut len));
    assert_eq!((again, len), (image, size));
    let mut m = CUmodule::NULL;
    ok!(cuModuleLoadData(&mut m, image));
    ok!(cuLinkDestroy(link));
    let mut at = upload(&21u32.to_ne_bytes());
    let mut params = [(&raw mut at).cast()];
    let f = function(m, c"k");
    ok!(cuLaunchKernel(
        f,
        1,
        1,
        1,
        1,
        1,
        1,
        0,
        CUstream::NULL,
        params.as_mut_ptr(),
        null_mut()
    ));
    assert_eq!(download(at, 4), 42u32.to_ne_bytes());
    free(at);
}

#[test]
fn a_fault_stays_with_its_context_and_other_contexts_go_on() {
    let broken = Ctx::new();
    let f = function(module(), c"trapped");
    let at = alloc(64);
    ok!(cuLaunchKernel(
        f,
        1,
        1,
        1,
        1,
        1,
        1,
        0,
        CUstream::NULL,
        null_mut(),
        null_mut()
    ));
    let first = code!(cuCtxSynchronize());
    assert_eq!(first, CUresult::CUDA_ERROR_LAUNCH_FAILED);
    let mut other = 0;
    assert_eq!(code!(cuMemAlloc_v2(&mut other, 16)), first);
    assert_eq!(code!(cuMemFree_v2(at)), first);
    assert_eq!(code!(cuStreamQuery(CUstream::NULL)), first);
    let mut value = 0;
    ok!(cuDeviceGetAttribute(&mut value, CUdevice_attribute(10), 0));
    let sound = Ctx::new();
    free(alloc(64));
    ok!(cuCtxSynchronize());
    drop(sound);
    drop(broken);
}

#[test]
fn launches_from_four_threads_all_count() {
    let ctx = Ctx::new();
    let f = function(module(), c"count");
    let at = upload(&0u32.to_ne_bytes());
    let handle = ctx.0;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                ok!(cuCtxSetCurrent(handle));
                let s = stream(1);
                for _ in 0..100 {
                    let mut at = at;
                    let mut params = [(&raw mut at).cast()];
                    ok!(cuLaunchKernel(
                        f,
                        2,
                        1,
                        1,
                        32,
                        1,
                        1,
                        0,
                        s,
                        params.as_mut_ptr(),
                        null_mut()
                    ));
                }
                ok!(cuStreamSynchronize(s));
                ok!(cuStreamDestroy_v2(s));
            });
        }
    });
    assert_eq!(download(at, 4), (4u32 * 100 * 64).to_ne_bytes());
    free(at);
}

#[test]
fn a_kernel_reaches_another_device_only_as_its_peer() {
    let there = Ctx::on(1);
    let at = upload(&1u32.to_ne_bytes());
    let here = Ctx::on(0);
    let f = function(module(), c"add");
    ok!(cuCtxEnablePeerAccess(there.0, 0));
    add(f, at, 41, CUstream::NULL);
    ok!(cuCtxSynchronize());
    let mine = alloc(4);
    ok!(cuMemcpyPeer(mine, here.0, at, there.0, 4));
    assert_eq!(download(mine, 4), 42u32.to_ne_bytes());
    ok!(cuCtxDisablePeerAccess(there.0));
    add(f, at, 1, CUstream::NULL);
    fails!(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
    drop(here);
    drop(there);
}

/// Loads a kernel `k` of one pointer with this body; the code of the attempt if it is refused.
fn kernel(variables: &str, body: &str) -> Result<CUfunction, CUresult> {
    let text = format!(
        ".version 8.3\n.target sm_80\n.address_size 64\n{variables}.visible .entry k(.param .u64 p) {{\n\
         .reg .b32 %r<4>; .reg .b64 %d<12>; .reg .pred %q<2>;\nld.param.u64 %d1, [p];\n{body}\nret;\n}}\n\0"
    );
    let mut m = CUmodule::NULL;
    match code!(cuModuleLoadData(&mut m, text.as_ptr().cast())) {
        CUresult::CUDA_SUCCESS => Ok(function(m, c"k")),
        code => Err(code),
    }
}

fn launch(f: CUfunction, threads: u32, mut at: u64, stream: CUstream) {
    let mut params = [(&raw mut at).cast()];
    ok!(cuLaunchKernel(
        f,
        1,
        1,
        1,
        threads,
        1,
        1,
        0,
        stream,
        params.as_mut_ptr(),
        null_mut()
    ));
}

#[test]
fn constants_are_stored_as_registers_are() {
    let _ctx = Ctx::new();
    let body = "st.global.u32 [%d1], 5; st.global.u32 [%d1+4], 6; st.global.u64 [%d1+8], 0x123456789abcdef0; \
                st.global.u8 [%d1+16], 7; mov.u32 %r1, %tid.x; setp.eq.u32 %q1, %r1, 1; \
                @%q1 st.global.v2.u32 [%d1+24], {8, 9}; @!%q1 st.global.u32 [%d1+20], 10;";
    let f = kernel("", body).unwrap();
    let at = upload(&[0; 32]);
    launch(f, 2, at, CUstream::NULL);
    let words: Vec<u32> = download(at, 32)
        .chunks(4)
        .map(|b| u32::from_le_bytes(b.try_into().unwrap()))
        .collect();
    assert_eq!(words, [5, 6, 0x9abc_def0, 0x1234_5678, 7, 10, 8, 9]);
    free(at);
}

#[test]
fn declarations_that_no_device_has_room_for_are_refused_when_loaded() {
    let _ctx = Ctx::new();
    for (variables, body) in [
        ("", ".local .b8 x[3000000000]; mov.u64 %d2, x;"),
        ("", ".local .b8 x[4294967296][4294967296]; mov.u64 %d2, x;"),
        ("", ".shared .b8 x[49153]; mov.u64 %d2, x;"),
        (".shared .b8 x[4294967300];\n", "mov.u64 %d2, x;"),
        ("", ".param .b8 x[3000000000]; st.param.b8 [x], %r1;"),
        (".func f(.param .b8 y[3000000000]) { ret; }\n", ""),
    ] {
        let code = kernel(variables, body).expect_err(body);
        assert_eq!(code, CUresult::CUDA_ERROR_INVALID_PTX, "{variables}{body}");
    }
    let code = kernel(".global .b8 x[4294967296][4294967296];\n", "").expect_err("too large");
    assert_eq!(code, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    kernel("", ".shared .b8 x[49152]; mov.u64 %d2, x;").expect("as large as may be");
}

#[test]
fn instructions_with_impossible_operands_are_faults() {
    for body in [
        "ld.global.v8.u64 {%d2, %d3, %d4, %d5, %d6, %d7, %d8, %d9}, [%d1];",
        "bar.warp.sync;",
        ".shared .b64 x; mbarrier.init.shared.b64 [x];",
        ".shared .b64 x; mbarrier.arrive.shared.b64 %d2;",
        "cp.async.mbarrier.arrive.noinc.shared.b64;",
    ] {
        let ctx = Ctx::new();
        let Ok(f) = kernel("", body) else { continue };
        let at = alloc(4096);
        launch(f, 32, at, CUstream::NULL);
        let code = code!(cuCtxSynchronize());
        assert_eq!(code, CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION, "{body}");
        drop(ctx);
    }
}

#[test]
fn a_fault_ends_kernels_that_wait_for_the_faulty_one() {
    let ctx = Ctx::new();
    let waits =
        "again: ld.volatile.global.u32 %r1, [%d1]; setp.eq.u32 %q1, %r1, 0; @%q1 bra again;";
    let (waits, trapped) = (kernel("", waits).unwrap(), function(module(), c"trapped"));
    let at = upload(&0u32.to_ne_bytes());
    let (a, b) = (stream(1), stream(1));
    launch(waits, 1, at, a);
    ok!(cuLaunchKernel(
        trapped,
        1,
        1,
        1,
        1,
        1,
        1,
        0,
        b,
        null_mut(),
        null_mut()
    ));
    let (done, ended) = std::sync::mpsc::channel();
    let current = ctx.0;
    std::thread::spawn(move || {
        ok!(cuCtxSetCurrent(current));
        done.send(code!(cuCtxSynchronize())).ok();
    });
    let code = ended.recv_timeout(std::time::Duration::from_secs(30));
    assert_eq!(code, Ok(CUresult::CUDA_ERROR_LAUNCH_FAILED));
    drop(ctx);
}

#[test]
fn a_variable_is_zero_behind_its_initial_bytes_also_in_memory_used_before() {
    let _ctx = Ctx::new();
    const LEN: usize = 5 << 20;
    let before = alloc(LEN);
    ok!(cuMemsetD8_v2(before, 0xFF, LEN));
    ok!(cuCtxSynchronize());
    free(before);
    let text = format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.global .b8 big[{LEN}] = {{1, 2, 3}};\n\
         .global .b8 none[64];\n.visible .entry k() {{ ret; }}\n\0"
    );
    let mut m = CUmodule::NULL;
    ok!(cuModuleLoadData(&mut m, text.as_ptr().cast()));
    for (name, len, first) in [(c"big", LEN, &[1, 2, 3][..]), (c"none", 64, &[])] {
        let (mut at, mut have) = (0, 0);
        ok!(cuModuleGetGlobal_v2(&mut at, &mut have, m, name.as_ptr()));
        assert_eq!(have, len);
        let bytes = download(at, len);
        assert!(bytes.starts_with(first) && bytes[first.len()..].iter().all(|&b| b == 0));
    }
}

/// PTX of one kernel that stores into its parameter what the 16-byte atomics return.
fn b128(name: &str, atomics: &str) -> CUfunction {
    let text = format!(
        ".version 8.3\n.target sm_90\n.address_size 64\n\
         .visible .entry {name}(.param .u64 o) {{\n\
         .reg .b64 %d0, x, y, z, w; .reg .b128 old, new, expected; .reg .b32 %t;\n\
         .shared .align 16 .b8 s[16];\n\
         ld.param.u64 %d0, [o];\n{atomics}\nret;\n}}\n\0"
    );
    let mut module = CUmodule::default();
    ok!(cuModuleLoadData(&mut module, text.as_ptr().cast()));
    let name = std::ffi::CString::new(name).expect("a name without zeros");
    function(module, &name)
}

fn launch_one(f: CUfunction, at: u64) {
    let mut at = at;
    let mut parameters: [*mut c_void; 1] = [(&raw mut at).cast()];
    let nothing = null_mut();
    ok!(cuLaunchKernel(
        f,
        1,
        1,
        1,
        1,
        1,
        1,
        0,
        CUstream::NULL,
        parameters.as_mut_ptr(),
        nothing
    ));
    ok!(cuCtxSynchronize());
}

/// The values look like addresses of the host, which a wrong choice of registers would read.
#[test]
fn atomics_of_16_bytes_exchange_the_memory_that_they_name() {
    const EXCHANGE: &str = "mov.u64 x, 0x1111222233334444; mov.u64 y, 0x5555666677778888;
        mov.b128 new, {x, y};
        atom.global.exch.b128 old, [%d0], new;
        mov.b128 {z, w}, old; st.global.u64 [%d0+16], z; st.global.u64 [%d0+24], w;";
    const COMPARE: &str = "ld.global.u64 x, [%d0+32]; ld.global.u64 y, [%d0+40];
        mov.b128 expected, {x, y};
        mov.u64 x, 0x9999aaaabbbbcccc; mov.u64 y, 0xddddeeeeffff0000; mov.b128 new, {x, y};
        atom.global.cas.b128 old, [%d0], expected, new;
        mov.b128 {z, w}, old; st.global.u64 [%d0+16], z; st.global.u64 [%d0+24], w;";
    const SHARED: &str = "mov.u64 x, 7; mov.u64 y, 8; mov.b128 new, {x, y};
        st.shared.u64 [s], 5; st.shared.u64 [s+8], 6;
        atom.shared.exch.b128 old, [s], new;
        mov.b128 {z, w}, old; st.global.u64 [%d0+16], z; st.global.u64 [%d0+24], w;
        ld.shared.u64 z, [s]; st.global.u64 [%d0], z; ld.shared.u64 z, [s+8]; st.global.u64 [%d0+8], z;";
    let _ctx = Ctx::new();
    let words = |at: u64| -> Vec<u64> {
        let bytes = download(at, 48);
        let words = bytes
            .chunks(8)
            .map(|it| u64::from_ne_bytes(it.try_into().expect("8 bytes")));
        words.collect()
    };
    let bytes = |words: [u64; 6]| words.map(u64::to_ne_bytes).concat();
    let at = upload(&bytes([1, 2, 0, 0, 0, 0]));
    launch_one(b128("exchange", EXCHANGE), at);
    let new = [0x1111_2222_3333_4444, 0x5555_6666_7777_8888];
    assert_eq!(words(at)[..4], [new[0], new[1], 1, 2]);
    free(at);
    let compare = b128("compare", COMPARE);
    for (expected, is_equal) in [([1, 2], true), ([1, 3], false), ([0, 2], false)] {
        let at = upload(&bytes([1, 2, 0, 0, expected[0], expected[1]]));
        launch_one(compare, at);
        let new = [0x9999_aaaa_bbbb_cccc, 0xdddd_eeee_ffff_0000];
        let stored = if is_equal { new } else { [1, 2] };
        assert_eq!(words(at)[..4], [stored[0], stored[1], 1, 2]);
        free(at);
    }
    let at = upload(&bytes([0; 6]));
    launch_one(b128("shared", SHARED), at);
    assert_eq!(words(at)[..4], [7, 8, 5, 6]);
    free(at);
}

#[test]
fn what_a_driver_refuses_is_refused_at_load_and_named() {
    let _ctx = Ctx::new();
    for (before, body, named) in [
        (
            ".extern .func foo;",
            "call foo;",
            "unresolved extern function `foo`",
        ),
        ("", "add.u64 %d, %r, %r;", "`%r` is .b32"),
        ("", "bra nowhere;", "undeclared label `nowhere`"),
        (
            ".func f() { ret; } .func f() { ret; }",
            "",
            "`f` is defined twice",
        ),
        (
            ".extern .global .b8 g[];",
            "mov.u64 %d, g;",
            "unresolved extern variable `g`",
        ),
        ("", "elect.sync _|%p, -1;", "requires .target sm_90"),
        (
            "",
            ".shared .b8 s[65536]; mov.u32 %r, s;",
            "shared variables of 0x10000 bytes",
        ),
        (
            ".visible .entry big(.param .b8 a[5000]) { ret; }",
            "",
            "parameters of 0x1388 bytes",
        ),
    ] {
        let text = format!(
            ".version 8.0\n.target sm_80\n.address_size 64\n{before}\n.visible .entry k() {{\n\
             .reg .b64 %d; .reg .b32 %r; .reg .pred %p;\n{body}\nret; }}\n"
        );
        let text = std::ffi::CString::new(text).unwrap();
        let (code, said) = load_and_log(&text);
        assert_eq!(code, CUresult::CUDA_ERROR_INVALID_PTX, "{body} {said}");
        assert!(
            said.contains(named) && said.contains("line "),
            "{body} {said}"
        );
    }
}

#[test]
fn a_later_version_of_ptx_is_refused_as_one() {
    let _ctx = Ctx::new();
    for (version, is_read) in [
        ("3.2", true),
        ("9.5", true),
        ("9.6", false),
        ("99.0", false),
    ] {
        let body = if is_read {
            "ret;"
        } else {
            "words.of the.future;"
        };
        let text = format!(
            "// .version 1.0\n.version {version}\n.target sm_30\n.address_size 64\n\
             .visible .entry k() {{ {body} }}\n"
        );
        let (code, said) = load_and_log(&std::ffi::CString::new(text).unwrap());
        if is_read {
            assert_eq!(code, CUresult::CUDA_SUCCESS, "{version} {said}");
            continue;
        }
        let expected = CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
        assert_eq!(code, expected, "{version} {said}");
        assert!(
            said.contains(&format!("line 2; error   : unsupported .version {version}")),
            "{said}"
        );
    }
}

#[test]
fn an_external_variable_with_its_size_is_the_module_s_own() {
    let _ctx = Ctx::new();
    let text = c".version 8.1\n.target sm_80\n.address_size 64\n.extern .global .u32 counts[3];\n\
        .visible .entry k(.param .b8 big[5000]) { .reg .u64 %d; mov.u64 %d, counts; \
        st.global.u32 [%d+8], 9; ret; }\n";
    let (code, said) = load_and_log(text);
    assert_eq!((code, said.as_str()), (CUresult::CUDA_SUCCESS, ""));
    let mut m = CUmodule::NULL;
    ok!(cuModuleLoadData(&mut m, text.as_ptr().cast()));
    let (mut at, mut len) = (0, 0);
    ok!(cuModuleGetGlobal_v2(
        &mut at,
        &mut len,
        m,
        c"counts".as_ptr()
    ));
    assert_eq!((len, download(at, 12)), (12, vec![0; 12]));
}

#[test]
fn a_function_that_no_input_of_a_link_defines_is_refused_there() {
    let _ctx = Ctx::new();
    let caller = c".version 8.0\n.target sm_80\n.address_size 64\n.extern .func foo;\n.visible .entry k() { call foo; ret; }\n";
    let mut link = CUlinkState::NULL;
    ok!(cuLinkCreate_v2(0, null_mut(), null_mut(), &mut link));
    ok!(cuLinkAddData_v2(
        link,
        CUjitInputType::CU_JIT_INPUT_PTX,
        caller.as_ptr().cast_mut().cast(),
        caller.to_bytes_with_nul().len(),
        c"part".as_ptr(),
        0,
        null_mut(),
        null_mut()
    ));
    let (mut image, mut size) = (null_mut(), 0);
    fails!(
        CUDA_ERROR_INVALID_PTX,
        cuLinkComplete(link, &mut image, &mut size)
    );
    ok!(cuLinkDestroy(link));
}

#[test]
fn a_cooperative_launch_takes_as_many_blocks_as_the_device_says() {
    let _ctx = Ctx::new();
    // As a compiler writes it, with a name for each value: few last at one place.
    let sums: String = (0..400)
        .map(|n| format!("add.u64 %v{}, %v{n}, %d1;\n", n + 1))
        .collect();
    let body = format!(".reg .b64 %v<500>; mov.u64 %v0, %d1;\n{sums}st.global.u64 [%d1], %v400;");
    let f = kernel("", &body).unwrap();
    let mut multiprocessors = 0;
    let which = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
    ok!(cuDeviceGetAttribute(&mut multiprocessors, which, 0));
    let at = alloc(8);
    for (threads, of_each) in [(256, 8), (1024, 2), (32, 32)] {
        let mut blocks = 0;
        ok!(cuOccupancyMaxActiveBlocksPerMultiprocessor(
            &mut blocks,
            f,
            threads,
            0
        ));
        assert_eq!(blocks, of_each, "{threads} threads");
        let most = (blocks * multiprocessors) as u32;
        let start = |grid: u32| {
            let mut at = at;
            let mut params = [(&raw mut at).cast()];
            code!(cuLaunchCooperativeKernel(
                f,
                grid,
                1,
                1,
                threads as u32,
                1,
                1,
                0,
                CUstream::NULL,
                params.as_mut_ptr()
            ))
        };
        assert!(most >= 64 * 256 / threads as u32, "{most}");
        assert_eq!(start(most), CUresult::CUDA_SUCCESS);
        let refused = CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
        assert_eq!(start(most + 1), refused);
    }
    let (mut grid, mut block) = (0, 0);
    ok!(cuOccupancyMaxPotentialBlockSize(
        &mut grid, &mut block, f, None, 0, 0
    ));
    assert_eq!((grid, block), (2 * multiprocessors, 1024));
    ok!(cuCtxSynchronize());
    free(at);
}
