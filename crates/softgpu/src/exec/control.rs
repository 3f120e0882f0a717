//! Control flow: branches, calls, exits, barriers.

use fercuda_ptx::ast::{Inst as Tree, Operand as Ast, Sym};
use fercuda_ptx::words::{Op, ScalarType as Ty, Word};

use super::lower::{
    Entity, LBarrier, LCallee, LTerm, Lower, LowerError, Lowered, ModList, Opd, PredRef, bad,
    operand,
};
use super::parameters;
use super::program::BarrierOp;
use super::rendezvous::together;
use super::width::rows;

/// Whether the instruction, if predicated, needs a block of its own.
pub(crate) fn ends_block(i: &Tree) -> bool {
    use fercuda_ptx::words::Mod;
    let has = |w| i.mods.contains(&Mod::Word(w));
    match i.op {
        Op::Ret
        | Op::Exit
        | Op::Trap
        | Op::Brkpt
        | Op::Call
        | Op::Bar
        | Op::Barrier
        | Op::Brx
        | Op::Nanosleep => true,
        Op::Shfl
        | Op::Vote
        | Op::Match
        | Op::Redux
        | Op::Mma
        | Op::Wmma
        | Op::Wgmma
        | Op::Ldmatrix
        | Op::Stmatrix
        | Op::Movmatrix
        | Op::Elect
        | Op::Setmaxnreg
        | Op::Activemask => true,
        Op::Cp => has(Word::WaitGroup) || has(Word::WaitAll),
        Op::Mbarrier => has(Word::TryWait) || has(Word::TestWait),
        _ => false,
    }
}

fn label(l: &mut Lower<'_, '_>, s: Sym) -> Lowered<usize> {
    match l.lookup(s) {
        Some(Entity::Label(b)) => Ok(b),
        _ => bad(format!("undefined label `{}`", l.name(s))),
    }
}

pub(crate) fn bra(l: &mut Lower<'_, '_>, i: &Tree, guard: PredRef) -> Lowered<()> {
    let Some(Ast::Name(s)) = i.operands.first() else {
        return bad("a label is needed");
    };
    let taken = label(l, *s)?;
    if guard == PredRef::True {
        l.terminate(LTerm::Jump(taken));
    } else {
        let fall = l.new_block();
        l.terminate_to(
            LTerm::Branch {
                pred: guard,
                taken,
                fall,
            },
            fall,
        );
    }
    Ok(())
}

pub(crate) fn lower(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Option<Lowered<()>> {
    match i.op {
        Op::Exit => l.terminate(LTerm::Exit),
        Op::Trap | Op::Brkpt => l.terminate(LTerm::Trap),
        Op::Brx => return Some(brx(l, i)),
        Op::Call => return Some(call(l, i)),
        Op::Bar | Op::Barrier => return Some(barrier(l, i, m)),
        Op::Nanosleep => {
            let next = l.new_block();
            l.terminate_to(LTerm::Nap(next), next);
        }
        _ => return None,
    }
    Some(Ok(()))
}

fn brx(l: &mut Lower<'_, '_>, i: &Tree) -> Lowered<()> {
    let [index, Ast::Name(list)] = i.operands.as_slice() else {
        return bad("an index and a list are needed");
    };
    let index = l.src(index, Ty::U32)?;
    let Some(Entity::Targets(names)) = l.lookup(*list) else {
        return bad("undefined list of labels");
    };
    let targets = names
        .into_iter()
        .map(|s| label(l, s))
        .collect::<Lowered<Vec<usize>>>()?;
    if targets.is_empty() {
        return bad("an empty list of labels");
    }
    l.terminate(LTerm::Switch { index, targets });
    Ok(())
}

/// The types of a function's parameters and results, by its tree.
fn formals(l: &Lower<'_, '_>, name: Sym) -> Option<(Vec<Ty>, Vec<Ty>)> {
    let f = *l.k.info.function_index.get(&name)?;
    let tree = l.k.info.function(l.k.module, f);
    let types = |vars: &[fercuda_ptx::ast::Var]| vars.iter().map(|v| v.ty).collect();
    Some((types(&tree.params), types(&tree.returns)))
}

/// The types of the parameters and results of the function that a call names, or reaches through a
/// register with the prototype or the targets named last; empty where they are not known.
fn formals_of_call(l: &mut Lower<'_, '_>, i: &Tree) -> (Vec<Ty>, Vec<Ty>) {
    let mut names = i.operands.iter().filter_map(|o| match o {
        Ast::Name(s) => Some(*s),
        _ => None,
    });
    let target = names.next();
    let found = match names.next().map(|s| l.lookup(s)) {
        Some(Some(Entity::Prototype(params))) => Some((params, Vec::new())),
        Some(Some(Entity::Targets(targets))) => targets.first().and_then(|&t| formals(l, t)),
        _ => target.and_then(|t| formals(l, t)),
    };
    found.unwrap_or_default()
}

fn call(l: &mut Lower<'_, '_>, i: &Tree) -> Lowered<()> {
    let (params, returns) = formals_of_call(l, i);
    let mut ops = i.operands.as_slice();
    let mut late = Vec::new();
    let mut rets = Vec::new();
    if let [Ast::List(list), rest @ ..] = ops {
        ops = rest;
        for (n, o) in list.iter().enumerate() {
            let formal = returns.get(n).copied();
            rets.push(parameters::result(l, o, formal, &mut late)?);
        }
    }
    let [target, rest @ ..] = ops else {
        return bad("a call without a target");
    };
    let mut args = Vec::new();
    if let Some(Ast::List(list)) = rest.first() {
        for (n, o) in list.iter().enumerate() {
            args.push(parameters::argument(l, o, params.get(n).copied())?);
        }
    }
    let callee = match target {
        Ast::Name(s) => match l.lookup(*s) {
            Some(Entity::Reg(v, ty)) if rows(ty) == 2 => LCallee::Indirect(Opd::Use(v)),
            Some(_) => return bad("the call's target is not a function"),
            None => {
                let found = l.k.info.function_index.get(s).copied();
                match (
                    found.and_then(|f| l.k.functions.get(&f)).copied(),
                    l.name(*s),
                ) {
                    (Some(code), _) => LCallee::Direct(code),
                    (None, "vprintf") => {
                        l.k.communicates = true;
                        LCallee::Printf
                    }
                    (None, "__assertfail") => LCallee::AssertFail,
                    // What one block frees another may have: checked in the order of execution.
                    (None, "malloc") => {
                        l.k.communicates = true;
                        LCallee::Malloc
                    }
                    (None, "free") => {
                        l.k.communicates = true;
                        LCallee::Free
                    }
                    (None, name) => {
                        return bad(format!("function `{name}` is declared but not defined"));
                    }
                }
            }
        },
        _ => return bad("the call's target is not a function"),
    };
    if matches!(callee, LCallee::Indirect(_)) {
        // Lanes with other targets come back to the call, so it stands alone: nothing is done
        // twice.
        let no_lanes = l.c32(0);
        l.sync_point(no_lanes);
    }
    let next = l.new_block();
    l.terminate_to(
        LTerm::Call {
            callee,
            args,
            rets,
            next,
        },
        next,
    );
    for result in late {
        result.load(l);
    }
    Ok(())
}

fn barrier(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    if m.has(Word::Warp) {
        let mask = l.src(operand(i, 0)?, Ty::B32)?;
        together(l, mask);
        let next = l.new_block();
        l.terminate_to(LTerm::WarpSync(next), next);
        return Ok(());
    }
    let aligned = i.op == Op::Bar || m.has(Word::Aligned);
    let next = l.new_block();
    let none = || LBarrier {
        op: BarrierOp::Sync,
        aligned,
        id: Opd::None,
        count: None,
        pred: PredRef::True,
        dest: Opd::None,
        dest_pred: PredRef::True,
        next,
    };
    if m.has(Word::Cluster) {
        let op = match (m.has(Word::Arrive), m.has(Word::Relaxed)) {
            (true, false) => BarrierOp::ClusterArrive,
            (true, true) => BarrierOp::ClusterArriveRelaxed,
            (false, _) => BarrierOp::Cluster,
        };
        l.terminate_to(LTerm::Barrier(LBarrier { op, ..none() }), next);
        return Ok(());
    }
    let (op, skip) = if m.has(Word::Red) {
        match m.any(&[Word::Popc, Word::And, Word::Or]) {
            Some(Word::Popc) => (BarrierOp::RedPopc, 1),
            Some(Word::And) => (BarrierOp::RedAnd, 1),
            Some(_) => (BarrierOp::RedOr, 1),
            None => return Err(LowerError::Unsupported),
        }
    } else if m.has(Word::Arrive) {
        (BarrierOp::Arrive, 0)
    } else {
        (BarrierOp::Sync, 0)
    };
    let ops = &i.operands;
    let id = match ops.get(skip) {
        Some(o) => l.src(o, Ty::U32)?,
        None => l.c32(0),
    };
    let mut b = LBarrier { op, id, ..none() };
    let mut at = skip + 1;
    let last = if skip == 1 {
        ops.len().saturating_sub(1)
    } else {
        ops.len()
    };
    if at < last {
        b.count = Some(l.src(&ops[at], Ty::U32)?);
        at += 1;
    }
    if skip == 1 {
        b.pred = l.pred(ops.get(at).ok_or(LowerError::Unsupported)?)?;
        if op == BarrierOp::RedPopc {
            b.dest = l.dst(&ops[0], Ty::U32)?;
        } else {
            b.dest_pred = l.pred_dst(&ops[0])?;
        }
    }
    l.terminate_to(LTerm::Barrier(b), next);
    Ok(())
}
