//! The compiler's messages for mistakes that new users make: each names the remedy.
//!
//! The test compiles small programs with rustc, against the libraries that cargo has built for this binary.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The crates that the programs use.
const CRATES: [&str; 4] = ["axum", "http", "reqwest", "tower"];

/// The folder of the libraries, which is that of this binary.
fn folder() -> PathBuf {
    let test = std::env::current_exe().expect("this test's own path");
    test.parent().expect("a folder").to_owned()
}

/// The libraries of a crate, the newest first. Builds with other features leave others in the folder.
fn libraries(name: &str) -> Vec<PathBuf> {
    let start = format!("lib{name}-");
    let is_library = |path: &PathBuf| {
        let file = path.file_name().and_then(|file| file.to_str()).unwrap_or_default();
        file.starts_with(&start) && path.extension() == Some("rlib".as_ref())
    };
    let files = fs::read_dir(folder()).expect("a folder").filter_map(|entry| Some(entry.ok()?.path()));
    let mut found: Vec<_> = files.filter(is_library).collect();
    found.sort_by_key(|path| fs::metadata(path).and_then(|data| data.modified()).ok());
    found.reverse();
    found
}

/// The newest library of each of the [`CRATES`].
fn dependencies() -> &'static [PathBuf; CRATES.len()] {
    static LIBRARIES: OnceLock<[PathBuf; CRATES.len()]> = OnceLock::new();
    let newest = |name: &str| libraries(name).into_iter().next();
    LIBRARIES.get_or_init(|| CRATES.map(|name| newest(name).unwrap_or_else(|| panic!("cargo has not built {name}"))))
}

/// Compiles a program with this version of the crate, and returns whether it compiles, and the messages.
fn compile_with(library: &Path, name: &str, body: &str) -> (bool, String) {
    let scratch = std::env::temp_dir().join(format!("tower-ratelimit-messages-{}-{name}", std::process::id()));
    fs::create_dir_all(&scratch).expect("a folder");
    let file = scratch.join("program.rs");
    let text = format!(
        "#![allow(unused)]\nuse std::net::IpAddr;\nuse tower::{{Layer as _, Service, ServiceBuilder}};\n\
         use tower_ratelimit::*;\nuse tower_ratelimit::response::RejectWithError;\n{body}\n"
    );
    fs::write(&file, text).expect("a file");
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.args(["--edition", "2024", "--crate-type", "lib", "--emit", "metadata", "--out-dir"]).arg(&scratch);
    rustc.arg("-L").arg(format!("dependency={}", folder().display()));
    rustc.arg("--extern").arg(format!("tower_ratelimit={}", library.display()));
    for (name, library) in CRATES.iter().zip(dependencies()) {
        rustc.arg("--extern").arg(format!("{name}={}", library.display()));
    }
    let output = rustc.arg(&file).output().expect("rustc");
    let _ = fs::remove_dir_all(&scratch);
    // Lines may be broken inside of a note.
    let messages = String::from_utf8_lossy(&output.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
    (output.status.success(), messages)
}

/// A correct program, with all features that the others use.
const CORRECT: &str = r#"
pub fn app() -> axum::Router {
    let limiter = Memory::new(Gcra::new(Quota::per_second(10)));
    let layer = RateLimitLayer::new(PeerIp::new(), limiter).exempt_if(key::ExactPaths::new(["/health"]));
    axum::Router::new().layer(layer)
}
pub fn client() {
    let limiter = Memory::new(Gcra::new(Quota::per_second(10)));
    let host = |request: &reqwest::Request| request.url().host_str().map(str::to_owned);
    let client = ServiceBuilder::new()
        .layer(RateLimitLayer::new(host, limiter).responder(RejectWithError))
        .map_err(tower::BoxError::from)
        .service(reqwest::Client::new());
    let request = reqwest::Request::new(http::Method::GET, "http://localhost".parse().unwrap());
    let _ = tower::ServiceExt::oneshot(client, request);
}
"#;

/// The newest library with which the correct program compiles.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let mut messages = Vec::new();
        for library in libraries("tower_ratelimit") {
            match compile_with(&library, "correct", CORRECT) {
                (true, _) => return library,
                (false, message) => messages.push(message),
            }
        }
        panic!("the correct program does not compile: {messages:#?}");
    })
}

/// The trait of a service's parts, which no other crate can name.
const PRIVATE: [&str; 2] = ["Parts<", "::parts::"];

/// Compiles a wrong program, whose messages must contain all of these texts.
#[track_caller]
fn must_explain(name: &str, body: &str, remedies: &[&str]) {
    let (compiles, messages) = compile_with(library(), name, body);
    assert!(!compiles, "{name} compiles");
    for private in PRIVATE {
        assert!(!messages.contains(private), "{name}: {private:?} in: {messages}");
    }
    for remedy in remedies {
        assert!(messages.contains(remedy), "{name}: no {remedy:?} in: {messages}");
    }
}

#[test]
fn quota_without_an_algorithm_names_one() {
    must_explain(
        "quota",
        "pub fn f() { let _: Memory<str, _> = Memory::new(Quota::per_second(10)); }",
        &["`tower_ratelimit::Quota` is neither an algorithm nor a limit", "for example `Gcra::new(quota)`"],
    );
}

#[test]
fn vec_of_limits_names_dyn_limit() {
    must_explain(
        "vec",
        "pub fn f() { let _: Memory<str, _> = Memory::new(vec![Limit::new(\"a\", Gcra::new(Quota::per_second(1)))]); }",
        &["is neither an algorithm nor a limit", "a `Vec` for `Memory` has `DynLimit::new(limit)` as elements"],
    );
}

#[test]
fn text_as_an_exemption_names_exact_paths() {
    let app = |exempt: &str| {
        format!(
            "pub fn f() -> axum::Router {{
                let limiter = Memory::new(Gcra::new(Quota::per_second(10)));
                axum::Router::new().layer(RateLimitLayer::new(PeerIp::new(), limiter).exempt_if({exempt}))
            }}"
        )
    };
    for (name, exempt) in [("exempt-text", "\"/health\""), ("exempt-list", "[\"/health\"]")] {
        must_explain(name, &app(exempt), &["`ExactPaths::new([\"/health\"])`", "a closure `|request: &"]);
    }
}

#[test]
fn closure_that_returns_a_borrowed_text_names_an_owned_one() {
    must_explain(
        "closure",
        "pub fn f() -> axum::Router {
            let limiter = Memory::new(Gcra::new(Quota::per_second(10)));
            let path = |request: &axum::extract::Request| request.uri().path();
            axum::Router::new().layer(RateLimitLayer::new(path, limiter))
        }",
        &["`Option<Key>`, `Result<Key, _>` or `Extracted<Key>`", "`Some(text.to_owned())`"],
    );
}

#[test]
fn error_type_without_rejections_names_map_err() {
    must_explain(
        "map-err",
        &CORRECT.replace(".map_err(tower::BoxError::from)\n", "\n"),
        &["add `.map_err(BoxError::from)` between the layer and the service"],
    );
}

#[test]
fn service_that_is_not_clone_names_the_buffer() {
    let service = "
        pub struct Jobs;
        impl Service<String> for Jobs {
            type Response = String;
            type Error = tower::BoxError;
            type Future = std::future::Ready<Result<String, tower::BoxError>>;
            fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), tower::BoxError>> {
                std::task::Poll::Ready(Ok(()))
            }
            fn call(&mut self, job: String) -> Self::Future { std::future::ready(Ok(job)) }
        }
        fn layer() -> RateLimitLayer<impl ExtractKey<String, Key = u8> + Clone, Memory<u8, Gcra>, RejectWithError> {
            let limiter = Memory::new(Gcra::new(Quota::per_second(10)));
            RateLimitLayer::new(|_: &String| Some(0_u8), limiter).responder(RejectWithError)
        }";
    for (name, service_of) in [
        ("clone-layer", "pub fn f() { let _ = layer().layer(Jobs); }"),
        ("clone-builder", "pub fn f() { let _ = ServiceBuilder::new().layer(layer()).service(Jobs); }"),
    ] {
        must_explain(
            name,
            &format!("{service}\n{service_of}"),
            &["the inner service of a rate limiter must be `Clone`, and `Jobs` is not", "ServiceBuilder::buffer(1024)"],
        );
    }
}

/// Messages name the types of the user's parts, not the trait behind the future.
#[test]
fn mistakes_around_the_response_future_name_its_public_parts() {
    let program = |line: &str| {
        format!(
            "fn spawn<F: Send>(_: F) {{}}
            pub fn f() {{
                let limiter = Memory::new(Gcra::new(Quota::per_second(10)));
                let layer = RateLimitLayer::new(|_: &String| Some(1_u8), limiter).responder(RejectWithError);
                let service = tower::service_fn(|_: String| async {{
                    let local = std::rc::Rc::new(1);
                    std::future::ready(()).await;
                    drop(local);
                    Ok::<_, tower::BoxError>(1_u8)
                }});
                let mut service = ServiceBuilder::new().layer(layer).service(service);
                {line}
            }}"
        )
    };
    for (name, line, expected) in [
        ("future-send", "spawn(service.call(String::new()));", "cannot be sent between threads safely"),
        ("future-type", "let () = service.call(String::new());", "found unit type `()`"),
        (
            "future-output",
            "let _: std::pin::Pin<Box<dyn Future<Output = u8>>> = Box::pin(service.call(String::new()));",
            "to be a future that resolves to `u8`",
        ),
    ] {
        must_explain(name, &program(line), &["ResponseFuture<String, (", expected]);
    }
    let wrong = "pub struct Future { inner: ResponseFuture<String, (u8, u8, u8, u8, u8, u8)> }";
    // Only a program that writes the parts itself meets the trait, behind the remedy.
    let (compiles, messages) = compile_with(library(), "future-parts", wrong);
    assert!(!compiles);
    assert!(messages.contains("are not the parts of a rate limit service for requests of type `String`"), "{messages}");
    assert!(messages.contains("as Service<Request>>::Future"), "{messages}");
}

/// The page about pitfalls has a row for each of these programs, with the compiler's words.
#[test]
fn messages_of_the_pitfalls_page_are_the_compilers() {
    let field = "pub struct App { layer: RateLimitLayer<PeerIp, Memory<IpAddr>> }";
    let limiter = "Memory::new(Gcra::new(Quota::per_second(10)))";
    let programs = [
        format!(
            "{field} pub fn f() -> App {{
                let limiter = {limiter};
                App {{ layer: RateLimitLayer::new(PeerIp::new(), limiter) }}
            }}"
        ),
        format!("pub fn f() -> Memory<IpAddr> {{ {limiter} }}"),
        format!(
            "pub fn f() -> axum::Router {{
                let path = |request: &axum::extract::Request| Some(request.uri().path());
                axum::Router::new().layer(RateLimitLayer::new(path, {limiter}))
            }}"
        ),
        "pub fn f() -> impl Sized {
            Limit::new(\"user\", Gcra::new(Quota::per_second(10))).keyed_by(|name: &String| name.as_str())
        }"
        .to_owned(),
        "pub fn f() { let _ = Quota::per_second(10).check(\"alice\", 1); }".to_owned(),
        CORRECT.replace(".map_err(tower::BoxError::from)\n", "\n"),
    ];
    let page = fs::read_to_string(Path::new(crate::ROOT).join("docs/pitfalls.md")).expect("the page");
    let (_, table) = page.split_once("| Message | Remedy |").expect("the table");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let mut documented: Vec<String> = Vec::new();
    for row in rows {
        // Spans without a mark in them are names in a row without the compiler's words, but for this message.
        let message = row.trim_start_matches('|').split(" | ").next().expect("a cell");
        let spans = message.split("``").skip(1).step_by(2).map(|span| span.trim().to_owned());
        documented.extend(spans);
        documented.extend(message.contains("`lifetime may").then(|| "lifetime may not live long enough".to_owned()));
    }
    assert_eq!(documented.len(), 5, "{documented:#?}");
    let mut found = vec![false; documented.len()];
    for (index, program) in programs.iter().enumerate() {
        let (compiles, messages) = compile_with(library(), &format!("pitfall-{index}"), program);
        assert!(!compiles, "{program}");
        let mut explained = false;
        for (message, found) in documented.iter().zip(&mut found) {
            let is_in = messages.contains(message.as_str());
            (*found, explained) = (*found || is_in, explained || is_in);
        }
        assert!(explained, "no row for {program}: {messages}");
    }
    assert!(found.iter().all(|found| *found), "{documented:#?} {found:?}");
}
