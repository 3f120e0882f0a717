//! Tests of the builder: readable listings, and errors for misuse.
//!
//! Listings are in `listings/`; `FERCUDA_BLESS=1` rewrites them.

mod ptxas;

use std::path::Path;

use fercuda_ptx::ast::PtxModule;
use fercuda_ptx::build::{
    Arch, Bf16, Bf16x2, BuildError, Cache, F16, F16x2, KernelBuilder, ModuleBuilder, Reg,
    STATIC_SHARED_LIMIT, Tf32,
};

fn assert_listing(name: &str, module: &PtxModule) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/listings")
        .join(name);
    let text = fercuda_ptx::print(module);
    if std::env::var_os("FERCUDA_BLESS").is_some() {
        std::fs::write(&path, &text).expect("the listing can be written");
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        text == wanted,
        "{name} differs from what is printed (FERCUDA_BLESS=1 accepts it):\n{text}"
    );
}

fn one(body: impl for<'k> FnOnce(&'k KernelBuilder)) -> Result<PtxModule, BuildError> {
    let mut module = ModuleBuilder::new(Arch::SM_80);
    module.kernel("kernel", body);
    module.finish()
}

#[test]
fn control_flow_reads_like_its_source() {
    let module = one(|k| {
        let out = k.param_ptr::<u32>("out");
        let n = k.param::<u32>("n");
        let steps = k.var("steps", 0);
        let x = k.var("x", n);
        k.while_(
            "collatz",
            || x.differs(1),
            || {
                k.if_else(
                    (*x & 1).equals(0).named("even"),
                    || x.set(x >> 1),
                    || x.set(x.mul_add(3, 1)),
                );
                steps.set(steps + 1);
            },
        );
        let sum = k.var("sum", 0);
        k.for_range("i", 0, n, 2, |i| sum.set(sum + i));
        k.loop_("halve", |l| {
            l.break_if(sum.lt(10));
            sum.set(sum >> 1);
            l.continue_if(sum.gt(100));
            steps.set(steps - 1);
        });
        out.index(k.global_id()).store(steps);
    })
    .unwrap();
    assert_listing("control_flow.ptx", &module);
}

/// One of everything, so that NVIDIA's assembler judges each spelling.
fn everything(k: &KernelBuilder) {
    let f = k.param_ptr_aligned::<f32>("f", 16);
    let u = k.param_ptr_aligned::<u32>("u", 16);
    let l = k.param_ptr::<u64>("l");
    let d = k.param_ptr::<f64>("d");
    let h = k.param_ptr::<F16>("h");
    let hh = k.param_ptr::<F16x2>("hh");
    let b = k.param_ptr::<Bf16>("b");
    let bb = k.param_ptr::<Bf16x2>("bb");
    let bytes = k.param_ptr::<u8>("bytes");
    let signed_bytes = k.param_ptr::<i8>("signed_bytes");
    let short = k.param::<u16>("short");
    let signed = k.param::<i32>("signed");
    let long = k.param::<i64>("long");

    // f32
    let x = f.load();
    let y = f.offset(1).load_volatile();
    let z = x + y - x * y / (y + 1.0);
    let z = 2.0 - z.mul_add(x, y).min(y).max(0.5).min_nan(x).max_nan(y);
    let z = z
        .sqrt()
        .recip()
        .rsqrt_approx()
        .abs()
        .floor()
        .ceil()
        .trunc()
        .round_even()
        .copysign(x);
    let z = z
        .exp2_approx()
        .log2_approx()
        .sin_approx()
        .cos_approx()
        .tanh_approx()
        .recip_approx();
    let z = z.sqrt_approx().div_approx(y).exp();
    let z = z.ln().tanh().sigmoid().erf();
    let z = x.test_nan().select(-z, y);
    f.store(z);

    // Integers
    let n = u.load();
    let n = (n + 7 - 3) * 5 / 3 % 11;
    let n = ((n & 0xff) | 1) ^ !n;
    let n = (n << 3) >> n;
    let n = n.count_ones() + n.leading_zeros() + n.reverse_bits() + n.extract_bits(3, 5);
    let n = n
        .insert_bits(n, 4, 4)
        .permute_bytes(n, 0x1234)
        .lop3(n, 7, 0xe8)
        .funnel_shift_left(n, 3);
    let n = n.dp4a(n, 0).mul_hi(n).div_ceil(4).min(9).max(2);
    u.store(n);
    let s = signed.dp4a(3, signed).abs().mul_add(2, signed) >> 2;
    let s = -s + (short.to::<i32>() << 1);
    u.store_if(s.lt(0) | s.ge(100) & !s.equals(3), s.to::<u32>());
    l.store(n.mul_wide(n) + n.mul_wide_add(3, l.load()));
    l.index(long.to::<u64>()).store((long * 3).to::<u64>());
    l.index(signed).store(u64::MAX);

    // Other floats
    let dd = d.load();
    d.store(dd.mul_add(2.0, 1.0 / dd).sqrt().recip() + x.to::<f64>() + n.to::<f64>());
    let (lo, hi) = hh.load().unpack();
    h.store(lo * hi + lo.mul_add(hi, x.to::<F16>()));
    hh.store(Reg::<F16x2>::pack(lo, hi));
    let (lo, hi) = bb.load().unpack();
    b.store((lo.widen() + hi.widen()).to::<Bf16>());
    bb.store(bb.load().mul_add(bb.load(), bb.load()));
    u.store(x.bitcast::<u32>() + x.to::<u32>());
    bytes.store(bytes.offset(1).load() + 1);
    signed_bytes.store(signed_bytes.index(s).load() - 1);

    // Memory
    let tile = k.shared::<f32>("tile", 64);
    let own = k.local::<u32>("own", 8);
    let table = k.constant::<f32>("table", &[1.0, -2.5]);
    let extra = k.dynamic_shared::<u32>("extra");
    let i = k.tid_x();
    tile.index(i).store(table.index(i & 1).load());
    own.index(i & 7).store(i);
    extra.index(i).store(own.index(i & 7).load());
    k.barrier();
    let v = f.load_vec::<4>();
    f.store_vec(v);
    let [p, q] = f.load_vec_readonly::<2>();
    f.store_vec_cached(Cache::Streaming, [q, p]);
    f.store_cached(Cache::L2, f.load_cached(Cache::All) + f.load_readonly());
    let [p, q] = f.load_vec_cached::<2>(Cache::L2);
    tile.store_vec([p, q]);
    u.store_release(u.load_acquire());
    u.store_release_system(u.load_acquire_system());
    k.nanosleep(100);
    tile.generic().store(f.generic().load_if(i.lt(3), 0.0));
    f.reduce_add(f.atomic_add(1.0));
    d.reduce_add(1.0);
    extra.reduce_add(
        u.atomic_min(3) + u.atomic_max(4) + u.atomic_and(1) + u.atomic_or(2) + u.atomic_xor(3),
    );
    u.store(u.atomic_exchange(1) + u.atomic_compare_swap(1, 2) + u.atomic_increment(7));
    let walking = f.var("walking");
    walking.advance(i);
    walking.advance(4);
    walking.store(1.0);

    // The warp and the block
    let sum = k.warp_reduce(x, |a, b| a + b);
    let sum = sum.shuffle(3) + sum.shuffle_up(1) + sum.shuffle_down(2) + sum.shuffle_xor(4);
    f.store(k.block_reduce(tile, sum, 0.0, |a, b| a + b));
    let any = k.warp_any(x.lt(y)) & k.warp_all(x.gt(y));
    u.store_if(
        any,
        k.ballot(x.lt(0.0)) + k.match_any(n) + k.active_mask() + k.warp_sum(n),
    );
    k.warp_barrier(0xffff_ffff);
    k.named_barrier(1, 64);
    k.fence_block();
    k.fence_device();
    l.store(k.clock64() + k.globaltimer());
    u.store(
        k.smid() + k.lanemask_lt() + k.lanemask_le() + k.lanemask_gt() + k.dynamic_shared_bytes(),
    );
    u.store(
        k.tid_y() + k.tid_z() + k.ntid_y() + k.ntid_z() + k.ctaid_y() + k.ctaid_z() + k.nctaid_x(),
    );
    u.store(k.nctaid_y() + k.nctaid_z() + k.lane());

    // Tensor cores
    tile.copy_16_from(f);
    tile.offset(4).copy_16_from_or_zero(f.offset(4), i.lt(9));
    k.copy_commit();
    k.copy_wait(0);
    k.barrier();
    let zero = k.value(0.0);
    let a = tile.load_matrix_4::<F16x2>();
    let [b0, b1, ..] = tile.load_matrix_4_transposed::<F16x2>();
    let c = k.mma_f16(a, [b0, b1], [zero; 4]);
    let c = k.mma_bf16(a.map(|r| r.bitcast()), [b0, b1].map(|r| r.bitcast()), c);
    let t = x.to::<Tf32>();
    let c = k.mma_tf32([t; 4], [t; 2], c);
    f.store_vec(c);
    let c = k.mma_s8(
        a.map(|r| r.bitcast()),
        [b0, b1].map(|r| r.bitcast()),
        [k.value(0); 4],
    );
    u.store_vec(c.map(|r| r.to::<u32>()));
    k.if_(n.equals(123_456), || k.trap());
}

#[test]
fn every_operation_is_accepted_by_ptxas_and_reads_back_equal() {
    let module = one(everything).unwrap();
    let text = fercuda_ptx::print(&module);
    assert!(fercuda_ptx::parse(&text).unwrap() == module);
    let Some(ptxas) = ptxas::find() else { return };
    for arch in [Arch::SM_80, Arch::SM_90] {
        let text = text.replace("sm_80", &arch.to_string());
        let log = ptxas.assemble(&text, arch);
        assert!(!log.contains("warning"), "{log}\n{text}");
    }
}

fn message(body: impl for<'k> FnOnce(&'k KernelBuilder)) -> String {
    one(body).expect_err("the mistake is found").to_string()
}

#[test]
fn a_register_read_outside_of_its_branch_is_an_error() {
    let error = message(|k| {
        let x = k.param::<f32>("x");
        let positive = x.gt(0.0);
        let inner = std::cell::Cell::new(x);
        k.if_(positive, || inner.set((x + 1.0).named("inner")));
        k.param_ptr::<f32>("out").store(inner.get());
    });
    assert_eq!(
        error,
        "kernel `kernel`: register `%inner` is read outside of the branch or loop that sets it\n\
         try: a `var` declared before the branch"
    );
}

#[test]
fn a_register_of_another_kernel_is_an_error() {
    let error = message(|outer| {
        let x = outer.param::<f32>("x");
        let mut other = ModuleBuilder::new(Arch::SM_80);
        other.kernel("inner", |k| k.param_ptr::<f32>("out").store(x));
        let error = other.finish().unwrap_err();
        outer.param_ptr::<f32>("out").store(1.0);
        assert!(
            matches!(&error, BuildError::ForeignRegister { kernel } if kernel == "inner"),
            "{error}"
        );
        outer.max_threads(0);
    });
    assert_eq!(
        error,
        "kernel `kernel`: 0 threads a block; a block has 1 to 1024"
    );
}

#[test]
fn names_are_checked() {
    assert_eq!(
        message(|k| k.ret_if(k.param::<f32>("add").lt(0.0))),
        "kernel `kernel`: `add` cannot be a name in PTX\n\
         try: a letter first, then letters, digits and `_`; not an opcode"
    );
    assert!(
        message(|k| k.ret_if(k.param::<f32>("1st").lt(0.0))).contains("`1st` cannot be a name")
    );
    let twice = message(|k| {
        k.param_ptr::<f32>("x").store(1.0);
        k.shared::<f32>("x", 4).store(1.0);
    });
    assert_eq!(twice, "kernel `kernel`: the name `x` is given twice");

    assert!(
        message(|k| k.shared::<f32>("kernel", 4).store(1.0)).contains("`kernel` is given twice")
    );

    let mut module = ModuleBuilder::new(Arch::SM_80);
    module.kernel("k", |k| k.ret()).kernel("k", |k| k.ret());
    assert_eq!(
        module.finish().unwrap_err().to_string(),
        "kernel `k`: the name `k` is given twice"
    );
}

#[test]
fn too_much_memory_is_an_error_that_names_a_way_out() {
    let error = message(|k| k.shared::<f32>("tile", 12_289).store(0.0));
    assert_eq!(
        error,
        format!(
            "kernel `kernel`: 49156 bytes of static shared memory, at most {STATIC_SHARED_LIMIT} exist\n\
             try: `dynamic_shared`, sized at launch"
        )
    );
    let error = message(|k| (0..600).for_each(|i| k.param_ptr::<f32>(&format!("p{i}")).store(0.0)));
    assert!(
        error.contains("4104 bytes of parameters, at most 4096"),
        "{error}"
    );
    let error = message(|k| k.param_ptr::<f32>("p").offset(1 << 40).store(0.0));
    assert!(
        error.contains("1099511627776 elements exceeds 2^31 bytes"),
        "{error}"
    );
}

#[test]
fn wanted_names_never_collide() {
    let module = one(|k| {
        let out = k.param_ptr::<f32>("out");
        // Special registers, numbered registers, each other.
        for name in [
            "tid", "f0", "f1", "pm3", "x", "x", "x_2", "", "a b", "out", "laneid",
        ] {
            out.store(out.load().named(name) + 1.0);
        }
    })
    .unwrap();
    let text = fercuda_ptx::print(&module);
    assert_eq!(fercuda_ptx::check(&module), []);
    if let Some(ptxas) = ptxas::find() {
        ptxas.assemble(&text, Arch::SM_80);
    }
    for name in ["%tid_,", "%f0_,", "%pm3_,", "%x_2_2", "%a_b"] {
        assert!(text.contains(name), "{name} in\n{text}");
    }
}

#[test]
fn kernels_of_a_module_share_their_dynamic_shared_memory() {
    let build = |second: fn(&KernelBuilder)| {
        let mut module = ModuleBuilder::new(Arch::SM_80);
        module
            .kernel("a", |k| k.dynamic_shared::<f32>("tile").store(1.0))
            .kernel("b", second);
        module.finish()
    };
    let module = build(|k| k.dynamic_shared::<f32>("tile").store(2.0)).unwrap();
    let text = fercuda_ptx::print(&module);
    assert_eq!(text.matches(".extern .shared").count(), 1, "{text}");
    assert_eq!(fercuda_ptx::check(&module), []);
    assert!(fercuda_ptx::parse(&text).unwrap() == module);
    if let Some(ptxas) = ptxas::find() {
        ptxas.assemble(&text, Arch::SM_80);
    }
    let error = build(|k| k.dynamic_shared::<u8>("tile").store(2)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "kernel `b`: the name `tile` is given twice"
    );
}

#[test]
fn operands_from_nowhere_are_an_error() {
    use fercuda_ptx::ast::{Operand, Sym};
    use fercuda_ptx::words::Op;
    let error = message(|k| k.raw_void(Op::Bra, &[], &[Operand::Name(Sym(1000))]));
    assert!(error.contains("register of another kernel"), "{error}");
}
