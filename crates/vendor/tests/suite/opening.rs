//! Search, versions and functions of libraries.

use std::process::Command;

use fercuda_vendor::Error;
use fercuda_vendor::cublaslt::{
    AlgorithmRequest, CublasLt, CublasLtLibrary, MatrixLayout, MatrixProduct, ProductMath,
    ProductSpec,
};
use fercuda_vendor::cufft::{
    CufftLibrary, TransformKind, TransformPlan, TransformPrecision, TransformSpec,
};

use crate::support::{FakeLibrary, context};

/// Set in the process that searches.
const CHILD: &str = "FERCUDA_TEST_VENDOR_CHILD";

/// Runs `name`, a test of this module, in a process with these variables and no others that
/// name places, and returns what it prints.
fn in_child(name: &str, variables: &[(&str, String)]) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "--nocapture", &format!("opening::{name}")]);
    for variable in [
        "FERCUDA_WHEELS",
        "CUDA_HOME",
        "CUDA_PATH",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "XDG_DATA_HOME",
        "LD_LIBRARY_PATH",
        "PATH",
    ] {
        command.env_remove(variable);
    }
    command.env(CHILD, "1").envs(variables.iter().cloned());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

fn describe_found() {
    match CublasLtLibrary::find() {
        Ok(library) => {
            println!("opened {} {}", library.version(), library.file().display());
            println!("{}", CublasLt::new(&library, &context()).unwrap_err());
        }
        Err(error) => println!("{error}"),
    }
}

#[test]
fn a_library_is_found_in_wheels_and_one_that_is_too_old_is_passed_over() {
    if std::env::var_os(CHILD).is_some() {
        return describe_found();
    }
    let fake = FakeLibrary::new("cublaslt", &["VERSION=111103"]);
    let wheel = fake.folder().join("nvidia/cu13/lib/libcublasLt.so.13");
    fake.compile("cublaslt", &["VERSION=130203"], &wheel);
    let text = in_child(
        "a_library_is_found_in_wheels_and_one_that_is_too_old_is_passed_over",
        &[
            ("FERCUDA_CUBLASLT", fake.file().display().to_string()),
            (
                "FERCUDA_WHEELS",
                fake.folder().join("nvidia").display().to_string(),
            ),
            ("HOME", fake.folder().display().to_string()),
        ],
    );
    assert!(
        text.contains(&format!("opened 13.2.3 {}", wheel.display())),
        "{text}"
    );
    assert!(
        text.contains("cuBLASLt needs a GPU, and the context is of"),
        "{text}"
    );
    assert_eq!(
        fake.count("create"),
        0,
        "the software device's context reached the library"
    );
}

#[test]
fn error_of_a_missing_library_lists_places_reasons_version_and_remedy() {
    use std::os::unix::fs::PermissionsExt as _;
    if std::env::var_os(CHILD).is_some() {
        return describe_found();
    }
    let fake = FakeLibrary::new("cublaslt", &["VERSION=111103"]);
    let lib = ".local/share/fercuda/venv/lib/python3.12/site-packages/nvidia/cu13/lib";
    let own = fake.folder().join(lib);
    fake.compile("cublaslt", &[], &own.join("libcublasLt.so.13"));
    std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o777)).unwrap();
    let text = in_child(
        "error_of_a_missing_library_lists_places_reasons_version_and_remedy",
        &[
            ("FERCUDA_CUBLASLT", fake.file().display().to_string()),
            ("HOME", fake.folder().display().to_string()),
        ],
    );
    for part in [
        "cannot open libcublasLt.so.13 or libcublasLt.so.12 (cuBLASLt 12.0 or later)".to_owned(),
        format!("tried {}: not opened, as", own.display()),
        "its group or others may write to it (mode 777)".to_owned(),
        format!(
            "tried {}: it is cuBLASLt 11.11.3, and 12.0.0 or later is wanted",
            fake.file().display()
        ),
        "tried libcublasLt.so.12: ".to_owned(),
        "try: `python3 -m pip install nvidia-cublas`".to_owned(),
    ] {
        assert!(text.contains(&part), "{part}\nis not in\n{text}");
    }
}

#[test]
fn a_library_of_another_kind_is_an_error_value() {
    let fake = FakeLibrary::new("cufft", &[]);
    // SAFETY: the library's initialisers do nothing, and it is refused.
    let error = unsafe { CublasLtLibrary::open(&fake.file()) }.unwrap_err();
    assert!(
        error.to_string().contains("it has no `cublasLtGetVersion`"),
        "{error}"
    );
    // SAFETY: the file does not exist.
    let error = unsafe { CufftLibrary::open("/none/libcufft.so".as_ref()) }.unwrap_err();
    assert!(
        error.to_string().contains("tried /none/libcufft.so: "),
        "{error}"
    );
}

#[test]
fn a_missing_function_is_an_error_when_it_is_called_and_not_before() {
    let fake = FakeLibrary::new("cublaslt", &["WITHOUT_HEURISTIC", "VERSION=120804"]);
    // SAFETY: the fake has the interface and works on the software device.
    let library = unsafe { CublasLtLibrary::open(&fake.file()) }.unwrap();
    let lt = CublasLt::new(&library, &context()).unwrap();
    let square = MatrixLayout::row_major(fercuda_tensor::Dtype::F32, 4, 4);
    let spec = ProductSpec::new(ProductMath::F32, square, square, square);
    let product = MatrixProduct::new(&lt, &spec).unwrap();
    let Err(Error::MissingFunction(missing)) = product.algorithms(&AlgorithmRequest::new()) else {
        panic!("the function is not there");
    };
    let expected = format!(
        "cuBLASLt 12.8.4 has no `cublasLtMatmulAlgoGetHeuristic`, which is in 10.1.0 and later \
         ({})\ntry: cuBLASLt 10.1.0 or later",
        fake.file().display()
    );
    assert_eq!(missing.to_string(), expected);
    drop(product);
    drop(lt);
    let counts = ["create", "destroy"].map(|start| fake.count(start));
    // A handle, a descriptor, four layouts; the preference was made for the search.
    assert_eq!(counts, [6, 7], "{:?}", fake.log());
}

#[test]
fn transforms_of_f64_are_an_error_where_the_library_lacks_them() {
    let fake = FakeLibrary::new("cufft", &["WITHOUT_DOUBLE"]);
    // SAFETY: the fake has the interface and works on the software device.
    let library = unsafe { CufftLibrary::open(&fake.file()) }.unwrap();
    assert_eq!(library.version().to_string(), "12.0.0");
    let context = context();
    let stream = fercuda_cuda::Stream::new(&context).unwrap();
    for (precision, is_there) in [
        (TransformPrecision::F32, true),
        (TransformPrecision::F64, false),
    ] {
        let spec = TransformSpec::new(TransformKind::ComplexToComplex, precision, &[8]);
        let plan = TransformPlan::new(&library, &context, &spec).unwrap();
        let mut data = fercuda_cuda::DeviceBuffer::<f64>::zeroed(&stream, 16).unwrap();
        let mut work = fercuda_cuda::DeviceBuffer::<u8>::zeroed(&stream, 512).unwrap();
        stream.synchronize().unwrap();
        let forward = fercuda_vendor::cufft::TransformDirection::Forward;
        let run = plan.run_in_place(&stream, forward, data.as_slice_mut(), work.as_slice_mut());
        assert_eq!(run.is_ok(), is_there, "{run:?}");
        if let Err(error) = run {
            assert!(
                error.to_string().contains("has no `cufftExecZ2Z`"),
                "{error}"
            );
        }
    }
    assert_eq!((fake.count("create"), fake.count("destroy")), (2, 2));
}
