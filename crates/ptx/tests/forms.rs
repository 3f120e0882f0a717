//! Round trip of every known form of the language, from tests/forms: parsed, checked, printed,
//! parsed again.
//!
//! ptxas 13.0 accepts each of these files (`declarations.ptx` but for its unresolved externs).

use fercuda_ptx::ast::{Imm, Init, InlinedAt, Inst, Item, Operand, PtxModule, Stmt};
use fercuda_ptx::words::{Mod, Op, ScalarType, Word};
use fercuda_ptx::{check, check_operands, parse, print};
use std::collections::HashSet;
use std::path::PathBuf;

fn forms() -> Vec<(PathBuf, String)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/forms");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("the folder is there")
        .map(|e| e.expect("an entry").path())
        .collect();
    files.sort();
    assert!(files.len() >= 8);
    files
        .into_iter()
        .map(|p| (p.clone(), std::fs::read_to_string(p).expect("a text")))
        .collect()
}

fn read(text: &str) -> PtxModule {
    parse(text).unwrap_or_else(|error| panic!("{error}"))
}

fn form(name: &str) -> PtxModule {
    let (_, text) = forms()
        .into_iter()
        .find(|(p, _)| p.ends_with(name))
        .expect("a form of that name");
    read(&text)
}

/// The instructions of a kernel with this body.
fn body(text: &str) -> (PtxModule, Vec<Inst>) {
    let module = read(&format!(
        ".version 9.0\n.target sm_90\n.address_size 64\n.entry k()\n{{\n{text}\n}}\n"
    ));
    let insts = module
        .function("k")
        .expect("k")
        .instructions()
        .map(|(_, inst)| inst.clone())
        .collect();
    (module, insts)
}

#[test]
fn every_form_reads_back_equal_and_prints_the_same_again() {
    for (path, text) in forms() {
        let module = parse(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let printed = print(&module);
        let again =
            parse(&printed).unwrap_or_else(|error| panic!("{} printed: {error}", path.display()));
        assert!(again == module, "{} reads back different", path.display());
        assert_eq!(print(&again), printed, "{}", path.display());
        assert_eq!(printed, module.to_string());
    }
}

#[test]
fn every_form_declares_its_names() {
    for (path, text) in forms() {
        let found = check(&read(&text));
        assert!(found.is_empty(), "{}: {}", path.display(), found[0]);
    }
}

#[test]
fn every_form_has_operands_that_fit() {
    for (path, text) in forms() {
        // The one file with functions and variables of other modules.
        let elsewhere = path.ends_with("declarations.ptx");
        let found = check_operands(&read(&text));
        let other: Vec<_> = found
            .iter()
            .filter(|d| !elsewhere || !d.message.starts_with("unresolved extern"))
            .collect();
        assert!(other.is_empty(), "{}: {other:?}", path.display());
    }
}

#[test]
fn every_word_of_the_language_has_a_form() {
    let (mut ops, mut mods) = (HashSet::new(), HashSet::new());
    let mut types = HashSet::new();
    for (_, text) in forms() {
        let module = read(&text);
        for item in &module.items {
            if let Item::Var(var) = item {
                types.insert(var.ty);
            }
        }
        for (_, inst) in module.functions().flat_map(|f| f.instructions()) {
            ops.insert(inst.op);
            mods.extend(inst.mods.iter().copied());
        }
    }
    let op = Op::ALL.iter().find(|op| !ops.contains(op));
    assert_eq!(op, None);
    // The shapes of wgmma are all alike.
    let word = Word::ALL
        .iter()
        .find(|w| !mods.contains(&Mod::Word(**w)) && !w.text().starts_with("m64n"));
    assert_eq!(word, None);
    let ty = ScalarType::ALL
        .iter()
        .find(|t| !mods.contains(&Mod::Type(**t)) && !types.contains(t));
    assert_eq!(ty.filter(|t| **t != ScalarType::Pred), None);
}

#[test]
fn the_layout_is_this() {
    let text = include_str!("layout.ptx");
    assert_eq!(print(&read(text)), text);
}

#[test]
fn constant_expressions_are_folded() {
    let int = |value| {
        Operand::Imm(Imm::Int {
            value,
            unsigned: false,
        })
    };
    let unsigned = |value| {
        Operand::Imm(Imm::Int {
            value,
            unsigned: true,
        })
    };
    let f64 = |value: f64| Operand::Imm(Imm::F64(value.to_bits()));
    for (text, expected) in [
        ("(1 + 2) * 3 - (4 << 1)", int(1)),
        ("-(0xF & ~3) | (7 > 3 ? 16 : 32)", int(-12 | 16)),
        ("(.u64) -1", unsigned(-1)),
        ("(.s64) 2.75", int(2)),
        ("-1U / 2", unsigned(i64::MAX)),
        ("-1 / 2", int(0)),
        ("7 % 4 == 3 && !0 || 1 / 1", int(1)),
        ("1 << 64", int(0)),
        ("-8 >> 1", int(-4)),
        ("2 < 3U != 3 <= 2", int(1)),
        ("0 ? 1 : 1 ? 2 : 3", int(2)),
        ("WARP_SZ * 2", int(64)),
        ("WARP_SZ", int(32)),
        ("0b1011U", unsigned(11)),
        ("0x8000000000000000", int(i64::MIN)),
        ("0177", int(127)),
        ("0", int(0)),
        ("1.5 + 0d3FE0000000000000", f64(2.0)),
        ("-2.5e-3", f64(-2.5e-3)),
        ("1.", f64(1.0)),
        ("3e2", f64(300.0)),
        ("0f7FC00001", Operand::Imm(Imm::F32(0x7fc0_0001))),
    ] {
        let (_, insts) = body(&format!("mov.b64 %rd1, {text};"));
        assert_eq!(insts[0].operands[1], expected, "{text}");
    }
}

#[test]
fn operands_are_read_as_what_they_are() {
    let (module, insts) = body(
        "setp.eq.and.s32 %p|_, %r1, a.y, !%q;\nld.b32 %r, [%r+4-12+-2*3];\nld.b32 %r, [0x10];\n\
         tex.2d %r, [t, {%f1, 1}];\nmov.b32 %r, %ctaid.z;\nmov.b32 %r, x+16;\n@!%p call (r), f, (1, %r), p;\n\
         vadd.u32.u32.u32 %r, a.b3, c.h1;",
    );
    let text = |i: usize| {
        insts[i]
            .operands
            .iter()
            .map(|o| format!("{o:?}"))
            .collect::<Vec<_>>()
    };
    let sym = |name: &str| format!("{:?}", module.symbols.get(name).expect(name));
    assert_eq!(
        text(0),
        [
            format!("Pair(Name({}), Name({}))", sym("%p"), sym("_")),
            format!("Name({})", sym("%r1")),
            format!("Member({}, 1)", sym("a")),
            format!("Not({})", sym("%q")),
        ]
    );
    assert_eq!(
        text(1)[1],
        format!("Address {{ base: Name({}), offset: -14 }}", sym("%r"))
    );
    assert_eq!(text(2)[1], "Address { base: Imm(16), offset: 0 }");
    assert!(matches!(&insts[3].operands[1], Operand::Bracket(items)
        if matches!(&items[..], [Operand::Name(_), Operand::Vector(v)] if v.len() == 2)));
    assert_eq!(text(4)[1], format!("Name({})", sym("%ctaid.z")));
    assert_eq!(text(5)[1], format!("Offset({}, 16)", sym("x")));
    assert!(
        insts[6]
            .guard
            .is_some_and(|g| g.negated && module.name(g.pred) == "%p")
    );
    assert!(matches!(&insts[6].operands[..],
        [Operand::List(r), Operand::Name(_), Operand::List(a), Operand::Name(_)] if r.len() == 1 && a.len() == 2));
    assert_eq!(text(7)[2], format!("Select({}, {})", sym("c"), sym("h1")));
}

#[test]
fn variables_keep_their_values() {
    let module = form("declarations.ptx");
    let init = |name: &str| {
        let sym = module.symbols.get(name).expect(name);
        module
            .items
            .iter()
            .find_map(|i| match i {
                Item::Var(v) if v.name == sym => Some(v.init.clone()),
                _ => None,
            })
            .expect(name)
    };
    let counter = module.symbols.get("counter").expect("counter");
    let address = |offset, generic, mask| Init::Address {
        name: counter,
        offset,
        generic,
        mask,
    };
    let int = |value, unsigned| Init::Imm(Imm::Int { value, unsigned });
    assert_eq!(init("pointer"), Some(address(4, true, None)));
    assert_eq!(
        init("packed"),
        Some(Init::List(vec![
            address(0, false, Some(0xff)),
            address(8, true, Some(0xff00)),
            int(255, false)
        ]))
    );
    assert_eq!(init("least"), Some(int(i64::MIN, false)));
    assert_eq!(init("most"), Some(int(-1, true)));
    assert_eq!(init("zero"), None);
    assert_eq!(module.file(1), Some(r"C:\kernels\a b.cu"));
    assert_eq!(module.file(3), None);
}

#[test]
fn instructions_come_with_the_source_line_in_force() {
    let module = form("declarations.ptx");
    let kernel = module.function("declared").expect("declared");
    let lines: Vec<_> = kernel
        .instructions()
        .map(|(loc, i)| (i.op, loc.map(|l| (l.file, l.line))))
        .collect();
    assert_eq!(
        lines,
        [
            (Op::Mov, Some((2, 4))),
            (Op::Add, Some((2, 5))),
            (Op::Ret, Some((2, 5)))
        ]
    );
    let inlined = kernel.body.iter().flatten().find_map(|stmt| match stmt {
        Stmt::Loc(loc) => loc.inlined.clone(),
        _ => None,
    });
    let function = module.symbols.get("$L__info_string0").expect("the label");
    assert_eq!(
        inlined,
        Some(InlinedAt {
            function,
            offset: 0,
            file: 1,
            line: 11,
            column: 3
        })
    );
}

#[test]
fn a_definition_is_found_before_its_declaration() {
    let module = form("control.ptx");
    assert!(module.function("trace").is_some_and(|f| f.body.is_some()));
    assert!(module.function("vprintf").is_some_and(|f| f.body.is_none()));
    assert!(module.function("absent").is_none());
    assert!(module.function("wait").is_none(), "a label is no function");
}

#[test]
fn instructions_know_their_lines_and_print_alone() {
    let (module, insts) = body("\n// two\n@%p add.s32 %r1, /* three\n */ %r1, 1;\nret;");
    assert_eq!(insts.iter().map(|i| i.line).collect::<Vec<_>>(), [8, 10]);
    assert_eq!(
        module.instruction_text(&insts[0]),
        "@%p add.s32 %r1, %r1, 1;"
    );
    assert_eq!(module.operand_text(&insts[0].operands[0]), "%r1");
}

#[test]
fn modules_equal_whatever_the_order_of_their_symbols() {
    let a = form("control.ptx");
    let mut b = a.clone();
    let mut symbols = fercuda_ptx::ast::Symbols::default();
    symbols.intern("a name that nothing uses");
    for i in (0..b.symbols.len()).rev() {
        symbols.intern(b.symbols.name(fercuda_ptx::ast::Sym(i as u32)));
    }
    b.visit_symbols(|sym| *sym = symbols.get(a.name(*sym)).expect("every name"));
    b.symbols = symbols;
    assert!(a == b && a.items != b.items);
    b.visit_symbols(|sym| {
        if sym.0 == 1 {
            sym.0 = 2;
        }
    });
    assert!(a != b);
}
