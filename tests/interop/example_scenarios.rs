//! Runs the examples with proxies, tiers, token costs and configuration as processes and checks their responses.
//!
//! `cargo test` builds the examples beside this binary.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::process::{Folder, Process, example, request};

/// Starts an example whose output includes its errors.
pub(crate) fn start(name: &str, arguments: &[&Path]) -> Process {
    Process::start(example(name).args(arguments).stderr(Stdio::piped()))
}

/// Runs an example to its end. Returns its success and its output.
pub(crate) fn run(name: &str, arguments: &[&Path]) -> (bool, Vec<String>) {
    let (status, printed) = start(name, arguments).output();
    (status.success(), printed)
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{answer}"))
}

/// The value of a required header.
fn field<'a>(answer: &'a str, name: &str) -> &'a str {
    let value = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    value.unwrap_or_else(|| panic!("{name} is missing in\n{answer}"))
}

const ALICE: &str = "authorization: Bearer secret-of-alice\r\n";

#[test]
fn behind_proxy_example_limits_by_client_address() {
    let server = start("behind_proxy", &[]);
    let address = server.address();
    let get = |fields: &str| request(address, "GET", "/", fields);
    let of = |client: &str| get(&format!("x-forwarded-for: {client}\r\n"));

    assert!(of("192.0.2.1").ends_with("Hello, 192.0.2.1!\n"));
    assert!(of("203.0.113.9, 192.0.2.1").ends_with("Hello, 192.0.2.1!\n"), "the client's own entries do not count");
    assert_eq!(status(&get("x-forwarded-for: 203.0.113.8\r\nx-forwarded-for: 192.0.2.1\r\n")), 200);
    for client in ["192.0.2.1", "203.0.113.7, 192.0.2.1", "\"192.0.2.1:80\"", "::ffff:192.0.2.1"] {
        assert_eq!(status(&of(client)), 429, "{client}");
    }
    assert_eq!(status(&of("192.0.2.2")), 200, "a different client");

    // A different API key for each request: the address has a limit for all keys.
    let with_keys = (0..20)
        .filter(|number| status(&get(&format!("x-forwarded-for: 192.0.2.3\r\nx-api-key: key-{number}\r\n"))) == 200);
    assert_eq!(with_keys.count(), 12);
    let with_one = (0..20).filter(|_| status(&get("x-forwarded-for: 192.0.2.4\r\nx-api-key: key\r\n")) == 200);
    assert_eq!(with_one.count(), 6);
}

#[test]
fn forward_auth_example_answers_proxies() {
    let server = start("forward_auth", &[]);
    let address = server.address();
    let ask = |path: &str, client: &str| request(address, "GET", path, &format!("x-forwarded-for: {client}\r\n"));

    for path in ["/auth", "/auth/nginx", "/auth"] {
        assert_eq!(status(&ask(path, "192.0.2.1")), 200, "both endpoints share the limit");
    }
    let rejection = ask("/auth", "192.0.2.1");
    assert_eq!(status(&rejection), 429, "{rejection}");
    let for_nginx = ask("/auth/nginx", "192.0.2.1");
    assert_eq!(status(&for_nginx), 403, "{for_nginx}");
    assert!(field(&for_nginx, "ratelimit").starts_with("\"default\";r=0;"), "{for_nginx}");
    assert!(field(&for_nginx, "retry-after").parse::<u64>().is_ok(), "{for_nginx}");
    assert_eq!(status(&ask("/auth", "192.0.2.2")), 200, "a different client");
}

#[test]
fn github_example_limits_by_token_and_tier() {
    let server = start("github", &[]);
    let address = server.address();
    let limit_and_remaining = |fields: &str| {
        let answer = request(address, "GET", "/", fields);
        assert_eq!(status(&answer), 200, "{answer}");
        let reset: u64 = field(&answer, "x-ratelimit-reset").parse().expect("seconds since the epoch");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        // The one-hour window began with the server.
        assert!((now + 3_000..now + 3_610).contains(&reset), "{reset} is not within an hour of {now}");
        assert!(!answer.contains("\nratelimit"), "{answer}");
        (field(&answer, "x-ratelimit-limit").to_owned(), field(&answer, "x-ratelimit-remaining").to_owned())
    };
    let numbers = |limit: &str, remaining: &str| (limit.to_owned(), remaining.to_owned());

    assert_eq!(limit_and_remaining(ALICE), numbers("5000", "4999"));
    assert_eq!(limit_and_remaining(ALICE), numbers("5000", "4998"));
    assert_eq!(limit_and_remaining(""), numbers("60", "59"));
    // Invalid tokens count by address, together with requests without a token.
    assert_eq!(limit_and_remaining("authorization: Bearer made-up\r\n"), numbers("60", "58"));
    assert_eq!(limit_and_remaining("authorization: secret-of-alice\r\n"), numbers("60", "57"));

    // The upgrade keeps her usage.
    assert_eq!(status(&request(address, "POST", "/upgrade", ALICE)), 200);
    assert_eq!(limit_and_remaining(ALICE), numbers("15000", "14997"));

    for remaining in (0..57).rev() {
        assert_eq!(limit_and_remaining(""), numbers("60", &remaining.to_string()));
    }
    let rejected = request(address, "GET", "/", "");
    assert_eq!((status(&rejected), field(&rejected, "x-ratelimit-remaining")), (429, "0"));
    assert!(field(&rejected, "retry-after").parse::<u32>().expect("seconds") > 3_000);
    assert_eq!(limit_and_remaining(ALICE), numbers("15000", "14996"));
}

#[test]
fn llm_tokens_example_charges_actual_costs() {
    let (succeeded, printed) = run("llm_tokens", &[]);
    assert!(succeeded, "{printed:#?}");
    assert_eq!(
        printed,
        [
            "during the first stream: 590 left",
            "completed after 95 words: 800 left",
            "cancelled after 45 words: 700 left",
            "exceeded the estimate after 145 words: 400 left",
            "settled at 120 tokens: 280 left",
            "400 tokens are not available: retry in 4 hours",
        ]
    );
}

/// A file that is deleted at the end of the test.
pub(crate) struct File {
    pub(crate) path: PathBuf,
    _folder: Folder,
}

impl File {
    pub(crate) fn with(name: &str, text: &str) -> Self {
        let folder = Folder::new(name);
        let file = Self { path: folder.path().join("limits.toml"), _folder: folder };
        file.save(text);
        file
    }

    /// Replaces the file atomically, as editors do.
    fn save(&self, text: &str) {
        let new = self.path.with_extension("new");
        fs::write(&new, text).expect("written");
        fs::rename(new, &self.path).expect("renamed");
    }
}

fn limit(settings: &str) -> String {
    format!("[[limits]]\nname = \"x\"\n{settings}\nby = \"address\"\n")
}

#[test]
fn config_example_reloads_a_changed_file() {
    let file = File::with("config", &limit("algorithm = \"fixed-window\"\nquota = \"5/h\""));
    let server = start("config", &[&file.path]);
    let address = server.address();
    let get = || request(address, "GET", "/", "");
    let line = || server.line().expect("a line");
    let check = |answer: &str, limit: u32, remaining: u32| {
        assert_eq!(field(answer, "ratelimit-policy"), format!("\"x\";q={limit};w=3600"));
        assert!(field(answer, "ratelimit").starts_with(&format!("\"x\";r={remaining};")), "{answer}");
    };
    check(&get(), 5, 4);
    check(&get(), 5, 3);

    // A raised limit keeps the usage.
    file.save(&limit("algorithm = \"fixed-window\"\nquota = \"100/h\""));
    assert_eq!(line(), format!("loaded the limits from {}", file.path.display()));
    check(&get(), 100, 97);

    // An invalid file is an error with its position and changes nothing.
    file.save(&limit("algorithm = \"fixed-window\"\nquota = \"100/fortnight\""));
    let printed: Vec<_> = (0..5).map(|_| line()).collect();
    let start = format!("kept the previous limits: {}: TOML parse error at line 4, column 9", file.path.display());
    assert_eq!(printed[0], start);
    assert_eq!(printed[2], "4 | quota = \"100/fortnight\"");
    assert!(printed[4].starts_with("quota: \"100/fortnight\": a quota's period must end in "), "{printed:#?}");
    check(&get(), 100, 96);

    // The limit is lowered to the present usage.
    file.save(&limit("algorithm = \"fixed-window\"\nquota = \"4/h\""));
    // TOML's errors end in an empty line.
    let reloaded = [line(), line()].concat();
    assert_eq!(reloaded, format!("loaded the limits from {}", file.path.display()));
    let rejected = get();
    assert_eq!(status(&rejected), 429);
    check(&rejected, 4, 0);
}

#[test]
fn config_example_fails_for_an_invalid_file() {
    let file = File::with("wrong", &limit("algorithm = \"gcra\"\nquota = \"5/h\"\nburst = 0"));
    let (succeeded, printed) = run("config", &[&file.path]);
    assert!(!succeeded);
    assert!(printed.iter().any(|line| line.starts_with("burst: invalid burst: 0")), "{printed:#?}");

    let (succeeded, printed) = run("config", &[Path::new("/no/such/file.toml")]);
    assert!(!succeeded);
    assert!(printed[0].starts_with("/no/such/file.toml: "), "{printed:#?}");
}

/// The file beside the example, changed while the server runs.
#[test]
fn routes_example_limits_each_route_as_its_file_says() {
    let text =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/routes.toml")).expect("the file");
    let file = File::with("routes", &text);
    let server = start("routes", &[&file.path]);
    let address = server.address();
    let login = |user: &str| status(&request(address, "POST", "/login", &format!("authorization: Basic {user}\r\n")));
    // alice:x and bob:x. The address has five attempts for both.
    let attempts = ["YWxpY2U6eA==", "YWxpY2U6eA==", "Ym9iOng=", "Ym9iOng=", "YWxpY2U6eA==", "YWxpY2U6eA=="].map(login);
    assert_eq!(attempts, [200, 200, 200, 200, 200, 429]);
    assert_eq!(status(&request(address, "POST", "/login", "")), 400, "no account");

    let order = |user: &str| request(address, "POST", "/orders", user);
    assert_eq!(status(&order("")), 400, "a missing user is not shared");
    let alice = order("x-user: alice\r\n");
    assert_eq!((status(&alice), field(&alice, "ratelimit-policy")), (200, "\"orders\";q=10;w=1"));
    let get = request(address, "GET", "/orders", "");
    assert_eq!((status(&get), field(&get, "ratelimit-policy")), (200, "\"reads\";q=100;w=1"));
    let webhook = request(address, "POST", "/webhooks/shop", "");
    assert_eq!((status(&webhook), webhook.contains("ratelimit")), (200, false), "{webhook}");

    // Two downloads at once, which last for ten seconds.
    let downloads = [(); 2].map(|()| {
        let mut stream = TcpStream::connect(address).expect("a connection");
        write!(stream, "GET /downloads/a HTTP/1.1\r\nhost: localhost\r\n\r\n").expect("sent");
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).expect("an answer");
        assert_eq!(answer, *b"HTTP/1.1 200");
        stream
    });
    let third = request(address, "GET", "/downloads/b", "");
    assert_eq!(
        (status(&third), field(&third, "ratelimit-policy")),
        (429, "\"downloads\";q=2;qu=\"concurrent-requests\"")
    );
    drop(downloads);

    // A wrong part keeps the limits; raised quotas keep the usage.
    file.save(&text.replace("\"basic-user\"", "\"basic-usr\""));
    let printed: Vec<_> = (0..5).map(|_| server.line().expect("a line")).collect();
    assert!(printed[0].starts_with("kept the earlier limits: ") && printed[0].contains(" at line "), "{printed:#?}");
    assert!(printed[2].ends_with("| by = \"basic-usr\""), "{printed:#?}");
    assert!(printed[4].starts_with("by: unknown part \"basic-usr\""), "{printed:#?}");
    assert_eq!(login("YWxpY2U6eA=="), 429);
    file.save(&text.replace("5/min", "7/min"));
    assert_eq!(server.line().expect("a line"), "loaded the limits");
    let attempts = [(); 3].map(|()| login("YWxpY2U6eA=="));
    assert!(attempts[0] == 200 && attempts[2] == 429, "{attempts:?}");
}

/// The configuration file beside the example.
#[test]
fn config_example_serves_its_default_file() {
    let server = start("config", &[]);
    let answer = request(server.address(), "GET", "/", "");
    assert_eq!(status(&answer), 200);
    assert_eq!(field(&answer, "ratelimit-policy"), "\"address\";q=5;w=10, \"all\";q=1000;w=60");
}
