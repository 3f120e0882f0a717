//! `fercuda ops`, as a user runs it, on the software device.

use std::process::{Command, Output};

use serde_json::Value;

fn ops(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fercuda"));
    let command = command.arg("ops").args(args);
    let command = command
        .env("FERCUDA_DEVICE", "soft")
        .env("FERCUDA_CACHE", "");
    command.output().expect("fercuda runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The JSON that a successful command prints.
fn json(args: &[&str]) -> Value {
    let done = ops(&[args, &["--json"]].concat());
    assert_eq!(
        done.status.code(),
        Some(0),
        "{args:?}: {}",
        text(&done.stderr)
    );
    serde_json::from_slice(&done.stdout).expect("JSON")
}

#[test]
fn the_list_has_every_op_and_can_be_narrowed() {
    let all = json(&["list"]);
    let all = all["ops"].as_array().expect("a list");
    assert_eq!(all.len(), fercuda_ops::registry::rows().count());
    for (op, row) in all.iter().zip(fercuda_ops::registry::rows()) {
        assert_eq!(op["name"], row.name);
        assert_eq!(op["signature"], row.signature());
        let kernels = op["kernels"].as_array().expect("kernels");
        assert!(!kernels.is_empty(), "{op}");
        let types = op["types"].as_array().expect("types");
        assert_eq!(types.len(), row.dtypes().count());
    }
    let done = ops(&["list", "--family", "reduction", "--dtype", "i8"]);
    let out = text(&done.stdout);
    assert!(out.contains("argmax(x, axes=, keep=)"), "{out}");
    // Of another family, and of floats only.
    assert!(!out.contains("add(") && !out.contains("mean("), "{out}");
    // A pipe gets no escape sequence, and whole signatures.
    let out = text(&ops(&["list"]).stdout);
    let longest = "gaussian_nll_loss(x, target, variance, eps=1e-6, axes=, keep=)";
    assert!(out.contains(longest) && !out.contains('\x1b'), "{out}");
    assert_eq!(out.lines().count(), 1 + all.len());
}

#[test]
fn an_op_is_shown_with_everything_that_is_known_of_it() {
    let out = text(&ops(&["show", "layer_norm"]).stdout);
    for wanted in [
        "layer_norm(x, gamma?, beta?, eps=1e-5, axis=)",
        "gamma         a float; may be left out",
        "eps           1e-5 by default",
        "layer_norm({operands}, axis={axis}, eps={eps})",
        "jit.map       no: layer_norm combines elements",
        "jit.rows      order: fixed by",
    ] {
        assert!(out.contains(wanted), "{wanted} in\n{out}");
    }
    assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
    let op = json(&["show", "where"]);
    assert_eq!(op["operands"][0]["types"], "bool");
    assert_eq!(op["kernels"][0]["supported"], true);
    assert_eq!(op["kernels"][1]["supported"], false);
    assert_eq!(op["types"].as_array().map(Vec::len), Some(15));
}

#[test]
fn given_values_are_computed_with() {
    let run = json(&[
        "run",
        "add_scaled",
        "-i",
        "x:f32[2,2]@[1,2]=1,2,3,4",
        "-i",
        "y:f32[2]=10,nan",
        "--set",
        "alpha=-0.5",
        "--kernel",
        "jit.map",
    ]);
    assert_eq!(
        run["results"][0]["values"],
        serde_json::json!([-4.0, "NaN", -2.0, "NaN"])
    );
    assert_eq!(run["results"][0]["shape"], serde_json::json!([2, 2]));
    let plan = &run["plan"];
    assert_eq!(plan["kernel"], "jit.map");
    assert!(plan["reason"].to_string().contains("it was demanded"));
    assert_eq!(plan["rejected"][0]["kernel"], "jit.rows");
    let casted = json(&["run", "cast", "-i", "x:f32[3]=-1.5,300,nan", "--to", "u8"]);
    assert_eq!(
        casted["results"][0]["values"],
        serde_json::json!([0, 255, 0]),
        "{casted}"
    );
    let wide = json(&["run", "broadcast_to", "-i", "x:i16[]=7", "--shape", "2x2"]);
    assert_eq!(
        wide["results"][0]["values"],
        serde_json::json!([7, 7, 7, 7])
    );
}

#[test]
fn random_operands_repeat_with_the_seed_that_was_printed() {
    let words = [
        "run",
        "softmax",
        "-i",
        "x:f32[4,300]@[1,-4]",
        "--axes",
        "-1",
    ];
    let first = json(&words);
    let seed = first["seed"].to_string();
    let again = json(&[&words[..], &["--seed", &seed]].concat());
    assert_eq!(first["results"][0]["values"], again["results"][0]["values"]);
    let comparison = &first["results"][0]["comparison"];
    assert_eq!(comparison["wrong"], 0, "{comparison}");
    assert_eq!(comparison["unknown"], 0, "{comparison}");
    assert!(comparison["bound_there"].as_f64() > Some(0.0));
    let out = text(&ops(&[&words[..], &["--show-plan", "--seed", &seed]].concat()).stdout);
    for wanted in [
        &format!("--seed {seed}")[..],
        "kernel jit.rows: the first in the table",
        "  not jit.map: softmax combines elements",
        "softmax",
        "k0: rows",
        "largest error",
        "(bound there",
        "  [3] ",
    ] {
        assert!(out.contains(wanted), "{wanted} in\n{out}");
    }
}

#[test]
fn elements_that_share_a_place_have_one_value() {
    for input in ["x:f32[3,4]@[0,1]", "x:f32[3,4]@[0,0]"] {
        let run = json(&["run", "sum", "-i", input, "--axes", "0", "--keep"]);
        assert_eq!(run["results"][0]["comparison"]["wrong"], 0, "{run}");
        assert_eq!(run["results"][0]["shape"], serde_json::json!([1, 4]));
    }
}

#[test]
fn integers_beyond_f64_are_not_judged_and_others_are_exact() {
    let large = "4611686018427387905";
    let words = format!("x:i64[2]={large},{large}");
    let run = json(&["run", "mul", "-i", &words, "-i", "y:i64[]=3"]);
    assert_eq!(run["results"][0]["comparison"]["wrong"], 0, "{run}");
    assert_eq!(run["results"][0]["comparison"]["unknown"], 2, "{run}");
    // 3 (2^62 + 1) less 2^64.
    assert_eq!(run["results"][0]["values"][0], -4611686018427387901_i64);
    let run = json(&["run", "prod", "-i", "x:i64[20]"]);
    assert_eq!(run["results"][0]["comparison"]["wrong"], 0, "{run}");
    let run = json(&["run", "sum", "-i", "x:i8[1000]"]);
    assert_eq!(run["results"][0]["comparison"]["unknown"], 0, "{run}");
}

#[test]
fn what_an_op_does_not_take_is_refused_with_what_to_try() {
    for (args, wanted) in [
        (&["show", "softmx"][..], "no op \"softmx\"\ntry: softmax,"),
        (
            &["run", "softmax", "-i", "x:i32[4]"],
            "x is i32, it takes a float\ntry: ",
        ),
        (
            &["run", "add", "-i", "x:f32[4]"],
            "needs operand y\ntry: --input 'y:f32[4]'",
        ),
        (
            &["run", "layer_norm", "-i", "x:f32[2,4]", "-i", "beta:f32[4]"],
            "needs operand gamma\ntry: --input 'gamma:f32[4]'",
        ),
        (
            &["run", "neg", "-i", "x:f32[4]", "-i", "y:f32[4]"],
            "no operand \"y\"\ntry: x",
        ),
        (
            &["run", "neg", "-i", "x:f32[4]", "-i", "x:f32[4]"],
            "given twice",
        ),
        (
            &["run", "add", "-i", "x:f32[4]", "-i", "y:f32[3]"],
            "no shapes to broadcast\ntry: ",
        ),
        (
            &["run", "neg", "-i", "x:f32[q]"],
            "\"q\" is not an integer\ntry: ",
        ),
        (
            &["run", "neg", "-i", "x:f32[2]=1,2,3"],
            "3 values given for f32[2]\ntry: 2 values",
        ),
        (
            &["run", "neg", "-i", "x:i8[2]=1,200"],
            "200 does not fit i8",
        ),
        (
            &["run", "neg", "-i", "x:f32[2]=two"],
            "unknown content \"two\"\ntry: ",
        ),
        (
            &["run", "elu", "-i", "x:f32[4]", "--set", "alpha=much"],
            "\"much\" is not a number\ntry: --set alpha=0.5",
        ),
        (
            &["run", "elu", "-i", "x:f32[4]", "--set", "slope=1"],
            "no number \"slope\"\ntry: alpha",
        ),
        (
            &["run", "neg", "-i", "x:f32[4]", "--axes", "0"],
            "neg has no axes\ntry: ",
        ),
        (
            &["run", "sum", "-i", "x:f32[4]", "--axes", "-2"],
            "no axis -2 of 1 dimensions\ntry: ",
        ),
        (
            &["run", "sum", "-i", "x:f32[4]", "--axes", "1"],
            "no axis 1 in [4]\ntry: ",
        ),
        (
            &["run", "cast", "-i", "x:f32[4]"],
            "no type to convert to\ntry: --to f16",
        ),
        (
            &["run", "neg", "-i", "x:f32[4]", "--kernel", "k"],
            "no kernel \"k\"\ntry: jit.map",
        ),
        (
            &["run", "neg", "-i", "x:f32[4]", "--kernel", "jit.rows"],
            "jit.map: jit.rows was demanded; jit.rows: neg computes each",
        ),
        (
            &["run", "neg", "-i", "x:f32[1000]", "--max-values", "10"],
            "the limit is 10\ntry: smaller shapes",
        ),
        (
            &["bench", "bitwise_and"],
            "not f16\ntry: --dtype with one of i8",
        ),
        (&["bench", "add", "--shape", "0"], "takes no time\ntry: "),
        (
            &["bench", "add", "--shape", "100000x100000"],
            "try: a smaller --shape",
        ),
        (&["list", "--dtype", "f33"], "possible values: f64, f32"),
        (&["bench", "add", "--samples", "29"], "29 is not in 30"),
    ] {
        let done = ops(args);
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(wanted), "{args:?}: {said}");
        assert!(done.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn a_benchmark_reports_each_op_beside_a_copy_and_says_that_it_is_simulated() {
    let words = [
        "bench",
        "add",
        "layer_norm",
        "broadcast_to",
        "--shape",
        "16x32",
    ];
    let report = json(&words);
    assert_eq!(report["simulated"], true);
    let rows = report["rows"].as_array().expect("rows");
    let bytes = |at: usize| rows[at]["necessary_bytes"].as_u64();
    // Two bytes an element: three matrices; two and two vectors; a vector and a matrix.
    assert_eq!(bytes(0), Some(3 * 16 * 32 * 2));
    assert_eq!(bytes(1), Some((2 * 16 * 32 + 2 * 32) * 2));
    assert_eq!(bytes(2), Some((32 + 16 * 32) * 2));
    for row in rows {
        let number = |name: &str| row[name].as_f64().expect("a number");
        let gb = number("necessary_bytes") / number("median_us") / 1e3;
        assert!((number("gb_per_s") / gb - 1.0).abs() < 1e-6, "{row}");
        let ratio = number("gb_per_s") / number("copy_gb_per_s");
        assert!(
            (number("fraction_of_copy") / ratio - 1.0).abs() < 1e-6,
            "{row}"
        );
        assert!(number("p10_us") <= number("median_us"), "{row}");
        assert!(number("median_us") <= number("p90_us"), "{row}");
        assert!(number("buffer_sets") >= 2.0, "{row}");
    }
    let done = ops(&words);
    let (out, said) = (text(&done.stdout), text(&done.stderr));
    assert!(out.contains("of a simulation"), "{out}");
    assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
    assert!(said.contains("measuring layer_norm (2 of 3)"), "{said}");
}

#[test]
fn the_standard_benchmark_leaves_out_ops_that_do_not_take_the_type() {
    let words = [
        "bench",
        "--dtype",
        "i32",
        "--shape",
        "8x8",
        "--samples",
        "30",
    ];
    let done = ops(&words);
    let (out, said) = (text(&done.stdout), text(&done.stderr));
    assert_eq!(done.status.code(), Some(0), "{said}");
    assert!(
        said.contains("softmax is left out: it takes no i32"),
        "{said}"
    );
    for op in ["copy", "add", "sum", "argmax"] {
        assert!(
            out.lines().any(|line| line.starts_with(op)),
            "{op} in\n{out}"
        );
    }
    assert!(!out.contains("softmax"), "{out}");
}

#[test]
fn lists_choices_many_operands_and_several_results_are_given_and_shown() {
    let out = text(&ops(&["show", "pad"]).stdout);
    assert!(
        out.contains("pads          whole numbers; none by default"),
        "{out}"
    );
    assert!(out.contains("constant, reflect, replicate"), "{out}");
    let args = ["run", "pad", "-i", "x:f32[3]=1,2,3"];
    let set = ["--set", "pads=1,2", "--set", "mode=reflect"];
    let run = json(&[&args[..], &set[..]].concat());
    let values = &run["results"][0]["values"];
    assert_eq!(*values, serde_json::json!([2.0, 1.0, 2.0, 3.0, 2.0, 1.0]));
    let done = ops(&[&args[..], &["--set", "pads=1,x"]].concat());
    assert_eq!(done.status.code(), Some(2));
    assert!(text(&done.stderr).contains("--set pads=1,2"), "{done:?}");
    let done = ops(&[&args[..], &["--set", "pads=1"]].concat());
    let error = text(&done.stderr);
    assert!(
        error.contains("pads has 1 numbers, 1 dimensions have 2"),
        "{error}"
    );
    let many = [
        "run",
        "concat",
        "-i",
        "x:i8[1]=1",
        "-i",
        "x:i8[2]=2",
        "-i",
        "x:i8[1]=3",
    ];
    let run = json(&many);
    assert_eq!(run["results"][0]["values"], serde_json::json!([1, 2, 2, 3]));
    let run = json(&["run", "topk", "-i", "x:f32[4]=1,7,3,5", "--set", "k=2"]);
    assert_eq!(run["results"][0]["values"], serde_json::json!([7.0, 5.0]));
    assert_eq!(run["results"][1]["values"], serde_json::json!([1, 3]));
    let outside = ["run", "take", "-i", "x:i8[2]=1,2", "-i", "index:i64[2]=1,2"];
    let done = ops(&outside);
    assert_eq!(done.status.code(), Some(1));
    let error = text(&done.stderr);
    assert!(error.contains("take: index 2, number 1 of"), "{error}");
}

#[test]
fn the_fastest_kernel_is_kept_and_taken_by_its_policy() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fercuda"));
        let command = command.arg("ops").args(words);
        let command = command
            .env("FERCUDA_DEVICE", "soft")
            .env("FERCUDA_CACHE", folder.path());
        command.output().expect("fercuda runs")
    };
    let inputs = ["-i", "x:f16[3,64]", "-i", "weight:f16[24,64]"];
    let of = |words: &[&'static str]| [words, &inputs].concat();
    let done = run(&of(&["tune", "linear", "--json"]));
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let report: Value = serde_json::from_slice(&done.stdout).expect("JSON");
    assert_eq!(report["simulated"], true);
    let kernels = report["kernels"].as_array().expect("kernels");
    let ids: Vec<&str> = kernels
        .iter()
        .filter_map(|it| it["kernel"].as_str())
        .collect();
    for id in ["cuda.skinny", "cuda.tensor", "cuda.multiply"] {
        assert!(ids.contains(&id), "{ids:?}");
    }
    let times = kernels.iter().map(|it| it["median_us"].as_f64());
    assert!(times.is_sorted(), "{report}");
    let rejected = report["rejected"].to_string();
    assert!(rejected.contains("3 rows, it is for one"), "{rejected}");

    let words = ["run", "linear", "--kernel", "measured", "--json"];
    let done = run(&of(&words));
    let ran: Value = serde_json::from_slice(&done.stdout).expect("JSON");
    assert_eq!(ran["plan"]["kernel"], kernels[0]["kernel"], "{ran}");
    let reason = ran["plan"]["reason"].to_string();
    assert!(
        reason.contains("the fastest when all were measured"),
        "{reason}"
    );

    // Of other layouts nothing was measured.
    let others = ["-i", "x:f16[3,64]", "-i", "weight:f16[32,64]"];
    let done = run(&[&words[..], &others].concat());
    assert!(text(&done.stdout).contains("none was measured"));
    for (words, wanted) in [
        (
            &["tune", "linear", "-i", "x:f16[3,64]"][..],
            "needs operand weight",
        ),
        (
            &["tune", "add", "-i", "x:f32[400000,400000]", "-i", "y:f32[]"],
            "try: ",
        ),
        (
            &["tune", "sum", "-i", "x:f32[99999999999]@[0]"],
            "of host memory",
        ),
        (
            &[
                "run", "add", "-i", "x:f32[2]", "-i", "y:f32[2]", "--kernel", "fastest",
            ],
            "no kernel",
        ),
    ] {
        let done = run(words);
        assert_eq!(done.status.code(), Some(2), "{words:?}");
        assert!(
            text(&done.stderr).contains(wanted),
            "{}",
            text(&done.stderr)
        );
    }
}

/// A program in the place of a Python, which answers as PyTorch's measurement does.
fn stand_in(folder: &std::path::Path, text: &str) -> String {
    use std::os::unix::fs::PermissionsExt as _;
    let path = folder.join("python");
    std::fs::write(&path, text).expect("a file");
    let mode = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(&path, mode).expect("a mode");
    path.to_string_lossy().into_owned()
}

#[test]
fn a_benchmark_has_pytorchs_times_beside_its_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let python = stand_in(
        folder.path(),
        "#!/bin/sh\nread spec\necho '{\"version\": \"9.9\"}'\nwhile read asked; do\n\
         case \"$asked\" in\n*'\"op\":\"add\"'*) echo '{\"median_us\": 1250.0}';;\n\
         *'\"op\":\"sub\"'*) echo '{\"error\": \"no memory\"}';;\n*) echo '{}';;\nesac\ndone\n",
    );
    let words = ["bench", "add", "sub", "mish", "--shape", "8x8"];
    let words = [&words[..], &["--samples", "30", "--torch", &python]].concat();
    let report = json(&words);
    assert_eq!(report["torch"], "9.9");
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows[0]["torch_us"], 1250.0);
    assert!(rows[1]["torch_us"].is_null() && rows[2]["torch_us"].is_null());
    let done = ops(&words);
    let (out, said) = (text(&done.stdout), text(&done.stderr));
    assert!(said.contains("PyTorch's sub: no memory"), "{said}");
    assert!(out.contains("PYTORCH: eager, 9.9"), "{out}");
    assert!(out.contains("SPEEDUP by geometric mean"), "{out}");
    assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
}

#[test]
fn a_python_without_pytorch_is_refused_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let refused = |python: &str, wanted: &str| {
        let done = ops(&["bench", "add", "--shape", "8x8", "--torch", python]);
        let said = text(&done.stderr);
        assert!(said.contains(wanted) && said.contains(python), "{said}");
        done.status.code()
    };
    let none = stand_in(
        folder.path(),
        "#!/bin/sh\necho '{\"error\": \"it has no PyTorch: none\"}'\n",
    );
    assert_eq!(refused(&none, "it has no PyTorch"), Some(2));
    assert_eq!(refused("/nowhere/python", "cannot be started"), Some(2));
    let silent = stand_in(folder.path(), "#!/bin/sh\nexit 3\n");
    assert_eq!(refused(&silent, "ended before it answered"), Some(1));
}
