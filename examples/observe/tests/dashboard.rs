//! The page of the example in a browser. `scripts/dashboard` installs a browser and runs this test.

use std::fs;
use std::io::BufReader;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

#[path = "../../../tests/servers/process.rs"]
mod process;

use self::process::{Folder, Process, get, listening};

/// Opens a page, runs its scripts for some seconds of virtual time, and returns the output of the arguments `act`.
fn chromium(folder: &Folder, act: &[&str], page: &str) -> String {
    let name = ["chromium", "chromium-browser", "google-chrome"];
    let browser = name.into_iter().find(|name| Command::new(name).arg("--version").output().is_ok());
    let mut command =
        Command::new(browser.expect("chromium (Debian: apt-get install -y chromium): see scripts/dashboard"));
    command
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"])
        .args([
            "--no-first-run",
            "--disable-background-networking",
            "--window-size=1000,900",
            "--virtual-time-budget=4000",
        ])
        .arg(format!("--user-data-dir={}", folder.path().join("profile").display()))
        .args(act)
        .arg(page)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    Process::start(&mut command).output().1.join("\n")
}

/// Sends requests for `/`, one after another, until it is dropped.
struct Traffic(Arc<AtomicBool>, Option<JoinHandle<()>>);

impl Traffic {
    fn start(address: SocketAddr) -> Self {
        let running = Arc::new(AtomicBool::new(true));
        let is_running = Arc::clone(&running);
        let sending = std::thread::spawn(move || {
            while is_running.load(Ordering::Relaxed) {
                get(address, "/");
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Self(running, Some(sending))
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
        // The page shows a failure of the thread.
        let _ = self.1.take().map(JoinHandle::join);
    }
}

/// Returns the text of the element with this id.
fn shown<'a>(page: &'a str, id: &str) -> &'a str {
    let start = page.find(&format!("id=\"{id}\"")).unwrap_or_else(|| panic!("no {id} in {page}"));
    let rest = &page[start..];
    let start = rest.find('>').expect("the tag's end") + 1;
    rest[start..].split('<').next().expect("its text")
}

/// Returns the size of an image and the number of its colours; a blank page has one colour.
fn colours(image: &Path) -> (u32, u32, usize) {
    let file = BufReader::new(fs::File::open(image).expect("a screenshot"));
    let mut reader = png::Decoder::new(file).read_info().expect("a PNG");
    let mut pixels = vec![0; reader.output_buffer_size().expect("its size")];
    let info = reader.next_frame(&mut pixels).expect("an image");
    let samples = info.color_type.samples();
    let colours: std::collections::HashSet<&[u8]> = pixels[..info.buffer_size()].chunks(samples).collect();
    (info.width, info.height, colours.len())
}

#[test]
#[ignore = "needs chromium: scripts/dashboard runs it"]
fn dashboard_shows_the_decisions() {
    let observe = Process::start(&mut listening(env!("CARGO_BIN_EXE_example-observe")));
    let address = observe.address();
    let (mut allowed, mut rejected) = (0, 0);
    for _ in 0..30 {
        match &get(address, "/")[..13] {
            "HTTP/1.1 200 " => allowed += 1,
            "HTTP/1.1 429 " => rejected += 1,
            other => panic!("{other}"),
        }
    }
    for _ in 0..3 {
        assert!(get(address, "/health").starts_with("HTTP/1.1 200 "));
    }
    // The second request waits in the queue, unless the machine is slow.
    for _ in 0..2 {
        assert!(get(address, "/queue").starts_with("HTTP/1.1 200 "));
        allowed += 1;
    }

    let folder = Folder::new("dashboard");
    let url = format!("http://{address}/dashboard");
    let page = chromium(&folder, &["--dump-dom"], &url);
    assert_eq!(shown(&page, "state"), "live, each second");
    assert_eq!(shown(&page, "allowed"), allowed.to_string());
    assert_eq!(shown(&page, "rejected"), rejected.to_string());
    assert_eq!(shown(&page, "exempt"), "3");
    assert_eq!(shown(&page, "waiting"), "0");
    assert!(shown(&page, "allowed-rate").ends_with(" a second"), "the page polls more than once");
    assert_eq!(shown(&page, "keys"), "1");
    // The table has a row for each sample.
    let metrics = get(address, "/metrics");
    let lines = metrics.lines().filter_map(|line| line.strip_prefix("ratelimit_requests_total{")?.split_once("} "));
    let mut rows = 0;
    for (labels, count) in lines {
        let values = labels.split(',').map(|label| label.split('"').nth(1).expect("a value"));
        let cells = values.map(|value| format!("<td>{}</td>", if value == "none" { "–" } else { value }));
        let row = cells.collect::<String>() + &format!("<td class=\"number\">{count}</td>");
        assert!(page.contains(&row), "{row}: {page}");
        rows += 1;
    }
    assert!(rows >= 4, "{metrics}");
    // Columns grow while requests come, and views of the page are not counted. The virtual time of the page is faster
    // than that of the server: one visit may see no allowed request, so the test repeats it.
    let traffic = Traffic::start(address);
    let visit = || chromium(&folder, &["--dump-dom"], &url);
    let page = std::iter::repeat_with(visit).take(20).find(|page| page.contains("fill=\"var(--allowed)\""));
    let page = page.expect("columns grow while requests come");
    assert_eq!(shown(&page, "exempt"), "3");

    let image = folder.path().join("dashboard.png");
    chromium(&folder, &[&format!("--screenshot={}", image.display())], &url);
    drop(traffic);
    let (width, height, many) = colours(&image);
    assert_eq!((width, height), (1000, 900));
    let blank = folder.path().join("blank.png");
    chromium(&folder, &[&format!("--screenshot={}", blank.display())], "about:blank");
    assert_eq!(colours(&blank).2, 1, "a blank page has one colour");
    assert!(many > 50, "{many} colours: the page is almost blank");
    // Keeps the screenshot on request.
    if let Ok(keep) = std::env::var("KEEP_SCREENSHOT") {
        fs::copy(&image, &keep).expect("a copy");
        println!("the screenshot is in {keep}");
    }
}

/// The page works offline, and sends its data to no other server.
#[test]
fn dashboard_page_loads_no_external_resources() {
    let page = include_str!("../src/observe.html");
    for line in page.lines() {
        let is_external = line.contains("://") && !line.contains("http://www.w3.org/2000/svg");
        assert!(!is_external && !line.contains("@import") && !line.contains(" src="), "{line}");
    }
}
