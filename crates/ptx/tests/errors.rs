//! Tests of the exact messages for invalid texts.

use fercuda_ptx::{check, parse};

const HEAD: &str = ".version 9.0\n.target sm_90\n.address_size 64\n";

/// The message for a module with this text behind its head, `line 4` being its first line.
fn fault(text: &str) -> String {
    match parse(&format!("{HEAD}{text}")) {
        Ok(module) => panic!("this was read: {module}"),
        Err(error) => error.to_string(),
    }
}

/// The message for a kernel with this body, which starts on line 6.
fn fault_in_body(text: &str) -> String {
    fault(&format!(".entry k()\n{{\n{text}\n}}\n"))
}

#[track_caller]
fn pinned(actual: &str, expected: &str) {
    assert_eq!(
        actual, expected,
        "\n--- said:\n{actual}\n--- expected:\n{expected}\n"
    );
}

#[test]
fn a_misspelt_opcode_is_named_with_the_one_meant() {
    pinned(
        &fault_in_body("    add.s32 %r1, %r2, 1;\n    fam.rn.f32 %f1, %f2, %f3, %f4;"),
        "line 7, column 5: unknown opcode `fam`; did you mean `fma`?\n      fam.rn.f32 %f1, %f2, %f3, %f4;\n      ^",
    );
    pinned(
        &fault_in_body("@%p frobnicate;"),
        "line 6, column 5: unknown opcode `frobnicate`\n  @%p frobnicate;\n      ^",
    );
}

#[test]
fn a_misspelt_modifier_is_named_with_the_one_meant() {
    pinned(
        &fault_in_body("ld.golbal.f32 %f1, [%rd1];"),
        "line 6, column 3: unknown modifier `.golbal` of `ld`; did you mean `.global`?\n  ld.golbal.f32 %f1, [%rd1];\n    ^",
    );
    pinned(
        &fault_in_body("add..f32 %f1, %f1, %f1;"),
        "line 6, column 4: expected a modifier, found `.`\n  add..f32 %f1, %f1, %f1;\n     ^",
    );
}

#[test]
fn a_missing_semicolon_is_noticed_where_the_next_line_begins() {
    pinned(
        &fault_in_body("add.s32 %r1, %r1, 1\nret;"),
        "line 7, column 1: expected `,` or `;` after an operand, found `ret`\n  ret;\n  ^",
    );
}

#[test]
fn a_text_that_ends_early_says_what_is_open() {
    pinned(
        &fault(".entry k() {\n  ret;"),
        "line 4, column 12: this `{` is never closed\n  .entry k() {\n             ^",
    );
    pinned(
        &fault(".entry k("),
        "line 4, column 10: expected `.param` or `.reg`, found the end of the text\n  .entry k(\n           ^",
    );
    pinned(
        &fault(".section .debug_str {\n.b8 1"),
        "line 4, column 21: this section is never closed\n  .section .debug_str {\n                      ^",
    );
    pinned(
        &fault("/* never"),
        "line 4, column 1: expected a directive, found a comment that never ends\n  /* never\n  ^",
    );
    pinned(
        &fault(".file 1 \"a.cu\n"),
        "line 4, column 9: this string has no closing quote on its line\n  .file 1 \"a.cu\n          ^",
    );
}

#[test]
fn a_module_without_its_head_gets_its_own_error() {
    let message = |text| parse(text).expect_err("no module").message;
    assert_eq!(
        message(""),
        "expected `.version` at the beginning of a module, found the end of the text"
    );
    assert_eq!(
        message("\x7fELF"),
        "expected `.version` at the beginning of a module, found `\\u{7f}`"
    );
    assert_eq!(
        message(".version 9"),
        "expected a version such as `9.0`, found the end of the text"
    );
    assert_eq!(
        message(".version 9.0 .entry k"),
        "expected `.target` after `.version`, found `.entry`"
    );
    assert_eq!(
        message(".version 9.0 .target sm_90 .target sm_90"),
        "`.target` stands once, at the beginning of a module"
    );
    assert_eq!(
        message(".version 9.0 .target sm_90 .address_size 48"),
        "`.address_size` is 32 or 64, and the same throughout"
    );
}

#[test]
fn misspelt_directives_are_named_with_the_one_meant() {
    pinned(
        &fault(".visable .entry k() { ret; }"),
        "line 4, column 1: unknown directive `.visable` at module scope; did you mean `.visible`?\n  .visable .entry k() { ret; }\n  ^",
    );
    pinned(
        &fault(".entry k() .maxtnid 1 { ret; }"),
        "line 4, column 12: unknown function directive `.maxtnid`; did you mean `.maxntid`?\n  .entry k() .maxtnid 1 { ret; }\n             ^",
    );
    pinned(
        &fault_in_body(".rge .b32 %r1;"),
        "line 6, column 1: unknown directive `.rge` in a body; did you mean `.reg`?\n  .rge .b32 %r1;\n  ^",
    );
    pinned(
        &fault(".global .f23 x;"),
        "line 4, column 9: `.f23` does not belong in this declaration; did you mean `.f32`?\n  .global .f23 x;\n          ^",
    );
    pinned(
        &fault(".global .f32 .f32 x;"),
        "line 4, column 14: `.f32` would be this declaration's second type\n  .global .f32 .f32 x;\n               ^",
    );
}

#[test]
fn malformed_numbers_are_pointed_at() {
    for (number, expected) in [
        ("0x", "a number needs a digit after its prefix"),
        ("12ab", "malformed number"),
        ("0f3F8", "`0f` takes 8 hexadecimal digits, here are 3"),
        ("0d3FF0", "`0d` takes 16 hexadecimal digits, here are 4"),
        ("18446744073709551616", "this integer does not fit 64 bits"),
        ("089", "an octal number has no digit above 7"),
        (
            "1e400",
            "this number does not fit 64 bits; infinity is 0d7ff0000000000000",
        ),
        ("1 / 0", "`/` has no value for these constants"),
        ("1.5 & 2", "`&` has no value for these constants"),
        ("~1.5", "this operator takes an integer, not a float"),
        ("(.b32) 1", "constants are cast to `.s64` or `.u64` only"),
        ("(1", "expected `)` to close the expression, found `;`"),
        ("1 +", "expected a constant, found `;`"),
    ] {
        let message = fault_in_body(&format!("mov.b32 %r1, {number};"));
        let first = message.lines().next().expect("a line");
        assert_eq!(
            first.split_once(": ").expect("a position").1,
            expected,
            "{number}"
        );
        assert!(first.starts_with("line 6, column "), "{first}");
    }
}

#[test]
fn operands_that_are_none_are_pointed_at() {
    for (operands, expected) in [
        ("", "expected an operand, found `;`"),
        ("%r1,", "expected an operand, found `;`"),
        ("%", "expected an operand, found `%`"),
        ("{%r1", "expected `}` or `,` after an operand, found `;`"),
        ("[%r1", "expected `]`, `+` or `,` in an address, found `;`"),
        (
            "%r1 %r2",
            "expected `,` or `;` after an operand, found `%r2`",
        ),
        (
            "a.q",
            "`.q` is no component of `a`: those are .x .y .z .w, .r .g .b .a, and the selectors .b0 or .h0",
        ),
        ("\"text\"", "expected an operand, found a string"),
        ("é", "expected an operand, found `é`"),
        ("\0", "expected an operand, found `\\0`"),
    ] {
        let message = fault_in_body(&format!(
            "mov.b32 {operands}{};",
            if operands.is_empty() { "," } else { "" }
        ));
        let message = message
            .lines()
            .next()
            .expect("a line")
            .split_once(": ")
            .expect("a position")
            .1;
        assert_eq!(
            message.replace("found `,`", "found `;`"),
            expected,
            "{operands}"
        );
    }
}

#[test]
fn nesting_is_bounded() {
    for (open, close) in [("{", "}"), ("mov.b32 ", ";"), ("", "")] {
        let inner = match open {
            "{" => format!("{}{}", "{".repeat(100_000), "}".repeat(100_000)),
            "mov.b32 " => format!(
                "mov.b32 %r1, {}1{};",
                "(".repeat(100_000),
                ")".repeat(100_000)
            ),
            _ => format!("mov.b32 {};", "{".repeat(100_000)),
        };
        let message = fault_in_body(&inner);
        assert!(
            message.contains("nested more than 64 deep"),
            "{open}{close}: {message}"
        );
        assert!(message.len() < 400, "a long line is cut: {}", message.len());
    }
    let message = fault(&format!(".global .b32 x = {};", "{".repeat(100_000)));
    assert!(message.contains("nested more than 64 deep"), "{message}");
    let message = fault_in_body(&format!("mov.b32 %r1, {}1;", "-".repeat(100_000)));
    assert!(message.contains("nested more than 64 deep"), "{message}");
    let message = fault_in_body(&format!("mov.b32 %r1, {};", "1?".repeat(100_000)));
    assert!(message.contains("nested more than 64 deep"), "{message}");
    let message = fault_in_body(&format!("mov.b32 {}a;", "a|".repeat(100_000)));
    assert!(message.contains("nested more than 64 deep"), "{message}");
}

/// What `check` says about a kernel with this body, which starts on line 6.
fn wrong(body: &str) -> Vec<String> {
    let text = format!("{HEAD}.entry k(.param .b32 n)\n{{\n{body}\n}}\n");
    let module = parse(&text).unwrap_or_else(|error| panic!("{error}"));
    check(&module).iter().map(ToString::to_string).collect()
}

#[test]
fn names_that_mean_nothing_are_named_with_their_lines() {
    assert_eq!(
        wrong(
            ".reg .b32 %r<3>;\n.reg .pred p;\nmov.u32 %r3, %tid.x;\n@q bra $L_away;\ncall away, (%r1);\n\
             st.global.b32 [buffer], %r0;\nadd.s32 %r3, %r2, %warp;\nmov.b32 %r1, %envreg32;"
        ),
        [
            "line 8; error   : undeclared register `%r3`: `%r<3>` declares up to `%r2`",
            "line 9; error   : undeclared name `q`",
            "line 9; error   : undeclared label `$L_away`",
            "line 10; error   : call of undeclared function `away`",
            "line 11; error   : undeclared name `buffer`",
            "line 12; error   : undeclared register `%warp`",
            "line 13; error   : undeclared register `%envreg32`",
        ]
    );
}

#[test]
fn instructions_with_too_few_or_too_many_operands_are_named() {
    assert_eq!(
        wrong(".reg .b32 a;\nadd.s32 a, a;\nret a;\nlop3.b32 a, a;\nbra;\nmax.s32 a, a, a, a;"),
        [
            "line 7; error   : `add` takes 3 operands, here are 2",
            "line 8; error   : `ret` takes no operands, here are 1",
            "line 9; error   : `lop3` takes 5 to 6 operands, here are 2",
            "line 10; error   : `bra` takes 1 operand, here are 0",
        ]
    );
}

#[test]
fn names_declared_twice_are_named() {
    assert_eq!(
        wrong(
            ".reg .b32 a, a, n;\n.reg .b32 %r<4>;\n.reg .b32 %r<2>, %r3;\nL: mov.b32 a, 1;\nL: ret;\n\
             .reg .b32 x7;\n.reg .b32 x<9>;\nret;"
        ),
        [
            "line 10; error   : `L` is declared twice in one block, as a label",
            "line 9; error   : `a` is declared twice in one block, as a register",
            "line 9; error   : `n` is declared twice in one block, as a variable and as a register",
            "line 9; error   : `%r<...>` is declared twice in one block, as a register",
            "line 13; error   : `x7`, one of `x<9>`, is declared twice in one block, as a register",
        ]
    );
}

#[test]
fn scopes_are_those_of_ptxas() {
    // A label within is not seen from without, nor from beside; one without is seen from within.
    assert_eq!(wrong("{ bra L; }\nL: ret;"), Vec::<String>::new());
    assert_eq!(wrong("{ L: ret; }\n{ L: bra L; }"), Vec::<String>::new());
    assert_eq!(wrong("L: { L: bra L; }\nret;"), Vec::<String>::new());
    assert_eq!(
        wrong("bra L;\n{ L: ret; }"),
        ["line 6; error   : undeclared label `L`"]
    );
    assert_eq!(
        wrong("{ L: ret; }\n{ bra L; }"),
        ["line 7; error   : undeclared label `L`"]
    );
    assert_eq!(
        wrong("mov.b32 a, 1;\n.reg .b32 a;"),
        ["line 6; error   : undeclared name `a`"]
    );
    assert_eq!(
        wrong(".reg .b32 a;\nbra a;\ncall n;"),
        [
            "line 7; error   : a branch needs a label, but `a` is a register",
            "line 8; error   : a call needs a function, but `n` is a variable"
        ]
    );
    assert_eq!(
        wrong(".reg .b64 f;\ncall f, missing;\ncall f, f;"),
        [
            "line 7; error   : undeclared call prototype `missing`",
            "line 8; error   : an indirect call needs a prototype or targets, but `f` is a register"
        ]
    );
}

#[test]
fn module_scope_is_checked_in_order() {
    let said = |text: &str| -> Vec<String> {
        let module = parse(&format!("{HEAD}{text}")).unwrap_or_else(|error| panic!("{error}"));
        check(&module).iter().map(ToString::to_string).collect()
    };
    assert_eq!(
        said(".entry k() { call f; ret; }\n.func f() { ret; }"),
        ["line 4; error   : call of undeclared function `f`"]
    );
    assert_eq!(
        said(".func f();\n.entry k() { call f; ret; }\n.func f() { ret; }"),
        Vec::<String>::new()
    );
    assert_eq!(
        said(".entry k() { ret; }\n.entry k() { ret; }"),
        ["line 5; error   : `k` is defined twice"]
    );
    assert_eq!(
        said(".global .b32 a;\n.global .b32 a;"),
        ["error   : `a` is defined twice"]
    );
    assert_eq!(
        said(".extern .global .b32 a;\n.global .b32 a;"),
        Vec::<String>::new()
    );
    assert_eq!(
        said(".global .b32 k;\n.entry k() { ret; }"),
        ["line 5; error   : `k` is declared as a variable and as a function"]
    );
    assert_eq!(
        said(".global .u64 a = generic(b);\n.alias f, g;"),
        [
            "error   : undeclared name `b` in an initialiser",
            "error   : undeclared function `g` as the target of an alias"
        ]
    );
}
