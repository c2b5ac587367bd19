//! Runs the example, changes its file, and checks its responses.

#[path = "../../../tests/servers/limits_file.rs"]
mod limits_file;
#[path = "../../../tests/servers/process.rs"]
mod process;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;

use self::limits_file::File;
use self::process::{Process, field, listening, request, status};

/// The file beside the example, changed while the server runs.
#[test]
fn routes_example_limits_each_route_as_its_file_says() {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("routes.toml")).expect("the file");
    let file = File::with("routes", &text);
    let program = env!("CARGO_BIN_EXE_example-routes");
    let server = Process::start(listening(program).arg(&file.path).stderr(Stdio::piped()));
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
