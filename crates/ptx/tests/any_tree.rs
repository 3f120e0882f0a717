//! Property tests over trees: printed text parses back equal.

use fercuda_ptx::ast::{
    AddrBase, Directive, Guard, Imm, Init, InlinedAt, Inst, Item, Linkage, Loc, Operand, PtrAttr,
    PtxFunction, PtxModule, Stmt, Sym, Symbols, Var,
};
use fercuda_ptx::check::{MAX_DIAGNOSTICS, check};
use fercuda_ptx::words::{Mod, Op, ScalarType, Space, Word};
use fercuda_ptx::{check_operands, parse, print};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// Names, among them words that mean something elsewhere. The first is an operand only.
const NAMES: &[&str] = &[
    "%tid.x",
    "_",
    "%r1",
    "%p",
    "a",
    "x",
    "b0",
    "add",
    "ret",
    "generic",
    "mask",
    "reg",
    "function_name",
    "inlined_at",
    "$L__BB0_1",
    "_Z3foov",
    "$str",
    "param0",
    "%rd12",
    "U",
    "e5",
    "%tid",
    "__local_depot0",
    "version",
];

fn sym() -> impl Strategy<Value = Sym> {
    (1..NAMES.len() as u32).prop_map(Sym)
}

fn flag_or<T: std::fmt::Debug>(
    value: impl Strategy<Value = T>,
) -> impl Strategy<Value = Option<T>> {
    prop::option::of(value)
}

fn text() -> impl Strategy<Value = String> {
    "[ -!#-~é\\\\]{0,12}"
}

fn imm() -> impl Strategy<Value = Imm> {
    let int = prop_oneof![
        any::<i64>(),
        -9i64..10,
        select(vec![i64::MIN, i64::MAX, 0xffff_ffff])
    ];
    prop_oneof![
        (int, any::<bool>()).prop_map(|(value, unsigned)| Imm::Int { value, unsigned }),
        any::<u32>().prop_map(Imm::F32),
        any::<u64>().prop_map(Imm::F64),
    ]
}

fn operand() -> BoxedStrategy<Operand> {
    let named = prop_oneof![
        4 => sym().prop_map(Operand::Name),
        1 => Just(Operand::Name(Sym(0))),
        1 => sym().prop_map(Operand::Not),
        1 => (sym(), any::<i64>()).prop_map(|(s, o)| Operand::Offset(s, o)),
        1 => (sym().prop_filter("%tid.x is one name", |s| NAMES[s.0 as usize] != "%tid"), 0u8..4)
            .prop_map(|(s, lane)| Operand::Member(s, lane)),
        1 => sym().prop_map(|s| Operand::Select(s, Sym(6))),
        1 => (sym(), any::<i64>()).prop_map(|(s, index)| Operand::Index(s, index)),
        2 => (sym(), any::<i64>()).prop_map(|(s, offset)| Operand::Address { base: AddrBase::Name(s), offset }),
        1 => any::<i64>().prop_map(|i| Operand::Address { base: AddrBase::Imm(i), offset: 0 }),
    ]
    .boxed();
    let negated = prop_oneof![
        sym().prop_map(Operand::Name),
        sym().prop_map(|s| Operand::Select(s, Sym(6))),
    ]
    .prop_map(|inner| Operand::Negated(Box::new(inner)));
    let leaf = prop_oneof![
        6 => named.clone(),
        2 => imm().prop_map(Operand::Imm),
        1 => negated,
    ]
    .boxed();
    leaf.prop_recursive(3, 12, 4, move |inner| {
        let head = prop_oneof![
            sym().prop_map(Operand::Name),
            (sym(), any::<i64>()).prop_map(|(s, o)| Operand::Offset(s, o))
        ];
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Operand::Vector),
            (head, vec(inner.clone(), 1..3)).prop_map(|(first, mut rest)| {
                rest.insert(0, first);
                Operand::Bracket(rest)
            }),
            (named.clone(), inner).prop_map(|(a, b)| Operand::Pair(Box::new(a), Box::new(b))),
        ]
    })
    .boxed()
}

fn inst() -> impl Strategy<Value = Inst> {
    let guard = flag_or((sym(), any::<bool>()).prop_map(|(pred, negated)| Guard { pred, negated }));
    let word = prop_oneof![
        select(Word::ALL).prop_map(Mod::Word),
        select(ScalarType::ALL).prop_map(Mod::Type)
    ];
    let call = vec(
        prop_oneof![operand(), vec(operand(), 0..4).prop_map(Operand::List)],
        0..4,
    );
    let operands = prop_oneof![
        4 => (select(Op::ALL), vec(operand(), 0..5)),
        1 => (Just(Op::Call), call),
    ];
    (guard, operands, vec(word, 0..6)).prop_map(|(guard, (op, operands), mods)| Inst {
        guard,
        op,
        mods,
        operands,
        line: 0,
    })
}

fn linkage() -> impl Strategy<Value = Linkage> {
    select(vec![
        Linkage::Local,
        Linkage::Visible,
        Linkage::Extern,
        Linkage::Weak,
        Linkage::Common,
    ])
}

fn init() -> impl Strategy<Value = Init> {
    let leaf = prop_oneof![
        imm().prop_map(Init::Imm),
        (sym(), any::<i64>(), any::<bool>(), flag_or(any::<u64>())).prop_map(
            |(name, offset, generic, mask)| Init::Address {
                name,
                offset,
                generic,
                mask
            }
        ),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| vec(inner, 0..4).prop_map(Init::List))
}

fn attributes() -> impl Strategy<Value = Vec<String>> {
    vec(
        select(vec![".managed".to_owned(), ".unified(1, 2)".to_owned()]),
        0..3,
    )
}

fn var(
    space: impl Strategy<Value = Space>,
    linkage: impl Strategy<Value = Linkage>,
) -> impl Strategy<Value = Var> {
    let ptr = flag_or(
        (flag_or(select(Space::ALL)), flag_or(any::<u32>()))
            .prop_map(|(space, align)| PtrAttr { space, align }),
    );
    (
        (
            linkage,
            space,
            flag_or(any::<u32>()),
            select(vec![1u32, 2, 4, 8]),
            select(ScalarType::ALL),
        ),
        (
            sym(),
            vec(flag_or(any::<u64>()), 0..3),
            flag_or(init()),
            ptr,
            attributes(),
        ),
    )
        .prop_map(
            |((linkage, space, align, vector, ty), (name, dims, init, ptr, attributes))| Var {
                linkage,
                space,
                align,
                vector,
                ty,
                name,
                dims,
                init,
                ptr: ptr.filter(|_| space == Space::Param),
                attributes,
            },
        )
}

fn params() -> impl Strategy<Value = Vec<Var>> {
    vec(
        var(select(vec![Space::Param, Space::Reg]), Just(Linkage::Local)),
        0..3,
    )
}

fn directives() -> impl Strategy<Value = Vec<Directive>> {
    let directive = prop_oneof![
        select(vec!["noreturn", "explicitcluster"]).prop_map(|w| Directive::Flag(w.to_owned())),
        (select(vec!["maxntid", "maxnreg"]), vec(any::<u32>(), 1..4))
            .prop_map(|(w, n)| Directive::Numbers(w.to_owned(), n)),
        vec(text(), 1..3).prop_map(Directive::Pragma),
    ];
    vec(directive, 0..3)
}

fn stmt() -> BoxedStrategy<Stmt> {
    let inlined = (sym(), any::<u64>(), any::<(u32, u32, u32)>()).prop_map(
        |(function, offset, (file, line, column))| InlinedAt {
            function,
            offset,
            file,
            line,
            column,
        },
    );
    let spaces = vec![
        Space::Local,
        Space::Shared,
        Space::Param,
        Space::Const,
        Space::Global,
        Space::Tex,
    ];
    let leaf = prop_oneof![
        6 => inst().prop_map(Stmt::Inst),
        1 => (select(vec![1u32, 2, 4, 8]), select(ScalarType::ALL), vec((sym(), flag_or(any::<u32>())), 1..4))
            .prop_map(|(vector, ty, names)| Stmt::Reg { vector, ty, names }),
        1 => var(select(spaces), linkage()).prop_map(Stmt::Var),
        1 => sym().prop_map(Stmt::Label),
        1 => (any::<(u32, u32, u32)>(), flag_or(inlined))
            .prop_map(|((file, line, column), inlined)| Stmt::Loc(Loc { file, line, column, inlined })),
        1 => vec(text(), 1..3).prop_map(Stmt::Pragma),
        1 => (sym(), vec(sym(), 1..4)).prop_map(|(name, targets)| Stmt::BranchTargets { name, targets }),
        1 => (sym(), vec(sym(), 1..4)).prop_map(|(name, targets)| Stmt::CallTargets { name, targets }),
        1 => (sym(), params(), params(), directives())
            .prop_map(|(name, returns, params, directives)| Stmt::CallPrototype { name, returns, params, directives }),
    ];
    leaf.prop_recursive(3, 16, 5, |inner| vec(inner, 0..5).prop_map(Stmt::Block))
        .boxed()
}

fn function() -> impl Strategy<Value = PtxFunction> {
    (
        (linkage(), any::<bool>(), sym(), params(), params()),
        (
            directives(),
            flag_or(vec(stmt(), 0..8)),
            flag_or(attributes()),
        ),
    )
        .prop_map(
            |((linkage, entry, name, returns, params), (mut directives, body, attributes))| {
                if let Some(attributes) = attributes.filter(|a| !a.is_empty()) {
                    directives.insert(0, Directive::Attribute(attributes));
                }
                PtxFunction {
                    linkage,
                    entry,
                    name,
                    returns: if entry { Vec::new() } else { returns },
                    params,
                    directives,
                    body,
                }
            },
        )
}

fn item() -> impl Strategy<Value = Item> {
    let spaces = vec![Space::Const, Space::Global, Space::Shared, Space::Tex];
    prop_oneof![
        2 => var(select(spaces), linkage()).prop_map(Item::Var),
        3 => function().prop_map(Item::Function),
        1 => (any::<u32>(), text(), flag_or(any::<(u64, u64)>()))
            .prop_map(|(index, path, stamp)| Item::File { index, path, stamp }),
        1 => ("\\.debug_[a-z]{1,4}", vec("[a-z$.][a-z0-9_:,$ ]{0,10}[a-z0-9]", 0..4))
            .prop_map(|(name, lines)| Item::Section { name, lines }),
        1 => (sym(), sym()).prop_map(|(name, target)| Item::Alias { name, target }),
        1 => vec(text(), 1..3).prop_map(Item::Pragma),
    ]
}

fn module() -> impl Strategy<Value = PtxModule> {
    (
        (0u32..=9999, 0u32..=9999),
        vec(
            select(vec![
                "sm_90a".to_owned(),
                "debug".to_owned(),
                "texmode_independent".to_owned(),
            ]),
            1..3,
        ),
        select(vec![32u32, 64]),
        vec(item(), 0..5),
    )
        .prop_map(|(version, target, address_size, items)| {
            let mut symbols = Symbols::default();
            for name in NAMES {
                symbols.intern(name);
            }
            PtxModule {
                version,
                target,
                address_size,
                items,
                symbols,
            }
        })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(if cfg!(miri) { 3 } else { 2000 }) })]

    #[test]
    fn any_tree_reads_back_equal(module in module()) {
        let text = print(&module);
        let again = match parse(&text) {
            Ok(again) => again,
            Err(error) => panic!("what was printed does not read back: {error}\n{text}"),
        };
        prop_assert!(again == module, "{text}");
        prop_assert_eq!(print(&again), text);
        prop_assert!(check(&module).len() <= MAX_DIAGNOSTICS);
        prop_assert!(check_operands(&module).len() <= MAX_DIAGNOSTICS);
    }
}
