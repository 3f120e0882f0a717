//! `wgmma` against matrices that are multiplied on the host, over layouts of both factors.
//!
//! Elements are small integers, so that every sum is exact in every format. A tile is written by
//! the formula of its layout in elements, and then exchanged byte by byte; nothing here is shared
//! with the device.

use crate::bench::{bytes, launch, words};
use crate::products::{ELEMENTS, Element, group, place_a, sum_bits};

/// Bytes of shared memory of a kernel here.
const SHARED: usize = 48 << 10;

/// How a matrix of so many rows (of M or N) and so many along K lies in memory.
#[derive(Debug, Clone, Copy)]
struct Layout {
    /// Whether rows of memory lie along M or N.
    side: bool,
    /// Bytes of a row of the pattern; 16: none.
    width: usize,
    start: usize,
    leading: usize,
    stride: usize,
}

impl Layout {
    /// A random one of a matrix of `rows` by `row_bytes`, and the bytes it takes from `start` on.
    fn random(
        random: &mut fastrand::Rng,
        side: bool,
        width: usize,
        (rows, depth, row_bytes): (usize, usize, usize),
        start: usize,
    ) -> (Self, usize) {
        // The offsets of parts of the matrix that follow each other along one direction or the
        // other; either may be the outer one.
        let core = 8 * width;
        let (along_rows, along_depth) = match (side, width) {
            (false, 16) => (rows / 8, row_bytes / 16),
            (false, _) => (rows / 8, 1),
            (true, _) => ((rows * 2).div_ceil(width), depth / 8),
        };
        let gap = core * random.usize(0..2);
        let rows_first = random.bool();
        let inner = if rows_first { along_rows } else { along_depth };
        let (small, large) = (core, core * inner + gap);
        let (by_rows, by_depth) = if rows_first {
            (small, large)
        } else {
            (large, small)
        };
        // In the order of M or N without a pattern the stride goes along it, with one the leading
        // offset does.
        let (leading, stride) = match (side, width) {
            (false, 16) | (true, 16) => (by_depth, by_rows),
            (false, _) => (16 * random.usize(0..9), by_rows),
            (true, _) => (by_rows, by_depth),
        };
        let layout = Layout {
            side,
            width,
            start,
            leading,
            stride,
        };
        let outer = if rows_first { along_depth } else { along_rows };
        (layout, large * outer.max(1) + small * inner)
    }

    /// Where byte `byte` of the element at (row, k) lies; `bits` an element's.
    fn place(&self, row: usize, k: usize, bits: usize) -> (usize, usize) {
        let linear = if self.side {
            let (part, within) = (row * 2 / self.width, row * 2 % self.width);
            let (parts, depths) = match self.width {
                16 => (self.stride, self.leading),
                _ => (self.leading, self.stride),
            };
            part * parts + k / 8 * depths + k % 8 * self.width + within
        } else {
            let at = k * bits / 8;
            let along = match self.width {
                16 => at / 16 * self.leading + at % 16,
                _ => at,
            };
            row / 8 * self.stride + row % 8 * self.width + along
        };
        let linear = self.start + linear;
        let mask = self.width / 16 - 1;
        (linear ^ (((linear / 128) & mask) * 16), k * bits % 8)
    }

    fn descriptor(&self) -> u64 {
        let mode = match self.width {
            16 => 0u64,
            128 => 1,
            64 => 2,
            _ => 3,
        };
        let field = |v: usize| v as u64 >> 4;
        field(self.start) | field(self.leading) << 16 | field(self.stride) << 32 | mode << 62
    }
}

/// One product to try.
#[derive(Debug, Clone, Copy)]
struct Form {
    columns: usize,
    /// As in the shape: with the zeros of a sparse A.
    depth: usize,
    sums: &'static str,
    sparse: Option<usize>,
    in_registers: bool,
    /// Whether A, and B, lie along M and N.
    sides: [bool; 2],
    widths: [usize; 2],
    adds: bool,
    signs: [i32; 2],
}

fn put(memory: &mut [u8], (at, bit): (usize, usize), bits: u32, value: u32) {
    if bits < 8 {
        memory[at] |= (value as u8) << bit;
    } else {
        memory[at..at + bits as usize / 8]
            .copy_from_slice(&value.to_le_bytes()[..bits as usize / 8]);
    }
}

/// What lanes that have no metadata hold.
fn metadata_word(
    random: &mut fastrand::Rng,
    rows: &[u64],
    lane: usize,
    selector: usize,
    bits: u32,
) -> u32 {
    let (row, four) = (lane / 4, lane % 4);
    if bits == 8 {
        return (rows[row + 8 * (four % 2)] >> (32 * (four / 2))) as u32;
    }
    if four / 2 != selector {
        return random.u32(..);
    }
    let half = |row: usize| rows[row] >> (16 * (four % 2)) & 0xffff;
    (half(row) | half(row + 8) << 16) as u32
}

fn list(name: &str, n: usize) -> String {
    let names: Vec<String> = (0..n).map(|k| format!("%{name}{k}")).collect();
    format!("{{{}}}", names.join(", "))
}

/// The matrices of a product: A with the zeros of a sparse one, and as it is stored.
struct Matrices {
    dense: Vec<Vec<i32>>,
    kept: Vec<Vec<i32>>,
    /// By row of A.
    metadata: Vec<u64>,
    /// By row, which are those of K.
    b: Vec<Vec<i32>>,
    c: Vec<Vec<i32>>,
}

impl Matrices {
    fn random(random: &mut fastrand::Rng, (a_type, b_type): (Element, Element), f: Form) -> Self {
        let (m, n, k) = (64, f.columns, f.depth);
        let stored = if f.sparse.is_some() { k / 2 } else { k };
        let mut matrix = |e: Element, rows: usize, columns: usize| -> Vec<Vec<i32>> {
            let last = if e.bits == 1 { 2 } else { 5 };
            let row = |random: &mut fastrand::Rng| {
                (0..columns).map(|_| random.i32(e.least..last)).collect()
            };
            (0..rows).map(|_| row(&mut *random)).collect()
        };
        let (kept, b) = (matrix(a_type, m, stored), matrix(b_type, k, n));
        let mut all = Matrices {
            dense: kept.clone(),
            kept,
            metadata: vec![0; m],
            b,
            c: (0..m)
                .map(|_| (0..n).map(|_| random.i32(-99..99)).collect())
                .collect(),
        };
        if f.sparse.is_some() {
            let width = if a_type.bits == 32 { 2 } else { 4 };
            for row in 0..m {
                let mut values = all.kept[row].iter();
                all.dense[row] = vec![0; k];
                for g in 0..k / width {
                    let (columns, bits) = group(random, a_type);
                    all.metadata[row] |= u64::from(bits) << (4 * g);
                    for (column, value) in columns.into_iter().zip(values.by_ref()) {
                        all.dense[row][g * width + column] = *value;
                    }
                }
            }
        }
        all
    }

    /// Shared memory with both factors, and how they lie there.
    fn memory(
        &self,
        random: &mut fastrand::Rng,
        (a_type, b_type): (Element, Element),
        f: Form,
    ) -> (Vec<u8>, [Layout; 2]) {
        let bits = a_type.bits as usize;
        let (m, n, k, stored) = (64, f.columns, f.depth, self.kept[0].len());
        let mut memory = vec![0u8; SHARED];
        let first = 1024 * random.usize(0..2);
        let size = (m, stored, stored * bits / 8);
        let (a, used) = Layout::random(random, f.sides[0], f.widths[0], size, first);
        let second = (first + used).next_multiple_of(1024);
        let size = (n, k, k * bits / 8);
        let (b, used) = Layout::random(random, f.sides[1], f.widths[1], size, second);
        assert!(second + used <= SHARED, "{f:?} {a:?} {b:?}");
        for (row, values) in self.kept.iter().enumerate() {
            for (x, &v) in values.iter().enumerate() {
                let v = (a_type.encode)(v);
                put(&mut memory, a.place(row, x, bits), a_type.bits, v);
            }
        }
        for (x, values) in self.b.iter().enumerate() {
            for (column, &v) in values.iter().enumerate() {
                let v = (b_type.encode)(v);
                put(&mut memory, b.place(column, x, bits), b_type.bits, v);
            }
        }
        (memory, [a, b])
    }

    /// Of each thread A's registers, the metadata and those of C; and those of D that it has to
    /// have.
    fn threads(
        &self,
        random: &mut fastrand::Rng,
        a_type: Element,
        f: Form,
    ) -> (Vec<u32>, Vec<u32>) {
        let bits = a_type.bits as usize;
        let halves = f.sums == "f16";
        let registers = if halves { f.columns / 4 } else { f.columns / 2 };
        let (mut input, mut expected) = (Vec::new(), Vec::new());
        for thread in 0..128 {
            let (warp, lane) = (thread / 32, thread % 32);
            let mut fragment = [0u32; 4];
            for i in 0..4 * 32 / bits {
                let (row, x) = place_a(a_type.bits, lane, i);
                let v = (a_type.encode)(self.kept[16 * warp + row][x]);
                fragment[i * bits / 32] |= v << (i * bits % 32);
            }
            input.extend(fragment);
            let rows = &self.metadata[16 * warp..16 * warp + 16];
            let selector = f.sparse.unwrap_or(0);
            input.push(metadata_word(random, rows, lane, selector, a_type.bits));
            let mut from = vec![0u32; registers];
            let mut to = vec![0u32; registers];
            for i in 0..f.columns / 2 {
                let row = 16 * warp + lane / 4 + 8 * (i / 2 % 2);
                let column = i / 4 * 8 + lane % 4 * 2 + i % 2;
                let products = self.dense[row].iter().zip(&self.b);
                let dot: i32 = products.map(|(x, b)| x * b[column]).sum();
                let before = self.c[row][column];
                let sum = f.signs[0] * f.signs[1] * dot + if f.adds { before } else { 0 };
                let (register, shift) = if halves {
                    (i / 2, 16 * (i % 2))
                } else {
                    (i, 0)
                };
                from[register] |= sum_bits(f.sums, before) << shift;
                to[register] |= sum_bits(f.sums, sum) << shift;
            }
            input.extend(from);
            expected.extend(to);
        }
        (input, expected)
    }
}

/// The instruction, without its operands, and the operands behind the descriptors.
fn instruction(a_type: Element, b_type: Element, f: Form) -> (String, String) {
    let mut tail = String::new();
    if let Some(selector) = f.sparse {
        tail += &format!(", %e0, {selector}");
    }
    tail += ", %p0";
    if a_type.name.contains(['f', 'e']) {
        tail += &format!(", {}, {}", f.signs[0], f.signs[1]);
    }
    if a_type.bits == 16 {
        if !f.in_registers {
            tail += &format!(", {}", u32::from(f.sides[0]));
        }
        tail += &format!(", {}", u32::from(f.sides[1]));
    }
    let sp = if f.sparse.is_some() { ".sp" } else { "" };
    let op = if a_type.bits == 1 { ".and.popc" } else { "" };
    let name = format!(
        "wgmma.mma_async{sp}.sync.aligned.m64n{}k{}.{}.{}.{}{op}",
        f.columns, f.depth, f.sums, a_type.name, b_type.name
    );
    (name, tail)
}

/// A kernel that copies its input to shared memory and forms one product.
fn kernel(name: &str, tail: &str, registers: usize, layouts: [Layout; 2], f: Form) -> String {
    let left = if f.in_registers {
        list("a", 4)
    } else {
        "%rd4".to_owned()
    };
    let each = 5 + registers;
    let loads: String = (0..registers)
        .map(|r| format!("ld.global.b32 %d{r}, [%rd2+{}];\n", 4 * (5 + r)))
        .collect();
    let stores: String = (0..registers)
        .map(|r| format!("st.global.b32 [%rd3+{}], %d{r};\n", 4 * r))
        .collect();
    format!(
        ".version 8.4\n.target sm_90a\n.address_size 64
.visible .entry k(.param .u64 input, .param .u64 output)
{{
    .reg .b32 %r<16>; .reg .b32 %a<4>; .reg .b32 %e<1>; .reg .b32 %d<128>;
    .reg .b64 %rd<8>; .reg .pred %p<4>;
    .shared .align 1024 .b8 tile[{SHARED}];
    ld.param.u64 %rd0, [input]; ld.param.u64 %rd1, [output];
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, tile; shl.b32 %r2, %r0, 2; add.u32 %r1, %r1, %r2;
    mul.wide.u32 %rd2, %r0, 4; add.u64 %rd2, %rd0, %rd2; mov.u32 %r3, 0;
COPY:
    ld.global.b32 %r4, [%rd2]; st.shared.b32 [%r1], %r4;
    add.u64 %rd2, %rd2, 512; add.u32 %r1, %r1, 512; add.u32 %r3, %r3, 512;
    setp.lt.u32 %p1, %r3, {SHARED}; @%p1 bra COPY;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    mad.wide.u32 %rd2, %r0, {}, %rd0; add.u64 %rd2, %rd2, {SHARED};
    mad.wide.u32 %rd3, %r0, {}, %rd1;
    ld.global.b32 %a0, [%rd2]; ld.global.b32 %a1, [%rd2+4];
    ld.global.b32 %a2, [%rd2+8]; ld.global.b32 %a3, [%rd2+12]; ld.global.b32 %e0, [%rd2+16];
    {loads}
    mov.u64 %rd4, {:#x}; mov.u64 %rd5, {:#x};
    setp.eq.u32 %p0, {}, 1;
    wgmma.fence.sync.aligned;
    {name} {}, {left}, %rd5{tail};
    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 0;
    {stores}
    ret;
}}
",
        4 * each,
        4 * registers,
        layouts[0].descriptor(),
        layouts[1].descriptor(),
        u32::from(f.adds),
        list("d", registers),
    )
}

fn try_form(random: &mut fastrand::Rng, a_type: Element, b_type: Element, f: Form) {
    let matrices = Matrices::random(random, (a_type, b_type), f);
    let (memory, layouts) = matrices.memory(random, (a_type, b_type), f);
    let (threads, expected) = matrices.threads(random, a_type, f);
    let input = [words(&memory), threads].concat();
    let registers = expected.len() / 128;
    let (name, tail) = instruction(a_type, b_type, f);
    let text = kernel(&name, &tail, registers, layouts, f);
    let out = words(&launch(&text, &bytes(&input), 512 * registers, 128));
    let wrong = out.iter().zip(&expected).position(|(a, b)| a != b);
    assert!(
        out == expected,
        "{name}: word {wrong:?}\n{f:?}\n{layouts:?}"
    );
}

const BIT: Element = Element {
    name: "b1",
    bits: 1,
    encode: |v| v as u32,
    least: 0,
};

fn element(name: &str) -> Element {
    let found = ELEMENTS.into_iter().find(|e| e.name == name);
    found.unwrap_or(BIT)
}

/// (A, B, sums, whether sums of A may lie along M)
const TYPES: [(&str, &str, &str); 15] = [
    ("f16", "f16", "f32"),
    ("f16", "f16", "f16"),
    ("bf16", "bf16", "f32"),
    ("tf32", "tf32", "f32"),
    ("e4m3", "e4m3", "f32"),
    ("e4m3", "e5m2", "f16"),
    ("e5m2", "e4m3", "f32"),
    ("e5m2", "e5m2", "f16"),
    ("e4m3", "e4m3", "f16"),
    ("e5m2", "e5m2", "f32"),
    ("s8", "s8", "s32"),
    ("s8", "u8", "s32"),
    ("u8", "s8", "s32"),
    ("u8", "u8", "s32"),
    ("b1", "b1", "s32"),
];

/// A random form of a type.
fn form(
    random: &mut fastrand::Rng,
    (a, _, sums): (&str, &str, &'static str),
    sparse: bool,
) -> Form {
    let bits = element(a).bits as usize;
    let short = bits == 16;
    let float = a.contains(['f', 'e']);
    let in_registers = random.bool();
    let sides = [
        short && !in_registers && random.bool(),
        short && random.bool(),
    ];
    let mut width = |side: bool, rows: usize, row_bytes: usize| loop {
        let width = 16 << random.usize(0..4);
        // A pattern is no longer than a row that is along M or N, and no shorter than one along K.
        let fits = if side {
            (rows * 2).is_multiple_of(width)
        } else {
            width == 16 || width >= row_bytes
        };
        if fits {
            break width;
        }
    };
    let steps: Vec<usize> = match float {
        true => (1..33).map(|n| 8 * n).collect(),
        false => [8, 24].into_iter().chain((1..17).map(|n| 16 * n)).collect(),
    };
    let row_bytes = if sparse { 64 } else { 32 };
    let columns = steps[fastrand::usize(0..steps.len())];
    let widths = [width(sides[0], 64, 32), width(sides[1], columns, row_bytes)];
    // What is left of shared memory has room for so much.
    let room = if widths[1] == 128 && !sides[1] {
        128
    } else {
        256
    };
    let widths = [widths[0].min(64), widths[1]];
    let mut sign = || if float && random.bool() { -1 } else { 1 };
    let signs = [sign(), sign()];
    Form {
        columns: if columns > room { room } else { columns },
        depth: row_bytes * 8 / bits,
        sums,
        sparse: sparse.then(|| if bits == 8 { 0 } else { random.usize(0..2) }),
        in_registers,
        sides,
        widths,
        adds: random.bool(),
        signs,
    }
}

#[test]
fn four_warps_multiply_matrices_of_every_layout() {
    let mut random = fercuda_trials::rng();
    for types in TYPES {
        for _ in 0..6 {
            let f = form(&mut random, types, false);
            try_form(&mut random, element(types.0), element(types.1), f);
        }
    }
    // Every layout of either factor, of the elements that have all.
    for width in [16, 32, 64, 128] {
        for side in [false, true] {
            let types = TYPES[random.usize(0..3)];
            let mut f = form(&mut random, types, false);
            f.in_registers = false;
            (f.columns, f.sides, f.widths) = (64, [side, !side], [width, width]);
            try_form(&mut random, element(types.0), element(types.1), f);
        }
    }
}

#[test]
fn four_warps_multiply_a_sparse_matrix() {
    let mut random = fercuda_trials::rng();
    for types in &TYPES[..14] {
        for _ in 0..3 {
            let f = form(&mut random, *types, true);
            try_form(&mut random, element(types.0), element(types.1), f);
        }
    }
}
