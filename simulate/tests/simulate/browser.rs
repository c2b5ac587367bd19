//! The playground in a browser, by the `WebDriver` protocol. `scripts/playground` installs a browser and runs it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs};

use base64::Engine as _;
use serde_json::{Value, json};

use crate::playground::start;
use crate::process::{Folder, Process};
use crate::support::exchange;

/// A session of a headless browser.
struct Browser {
    driver: SocketAddr,
    session: String,
    _chromedriver: Process,
    _profile: Folder,
}

impl Browser {
    fn start() -> Self {
        let port = |line: &str| {
            let port = line.split("started successfully on port ").nth(1)?.trim_end_matches('.').parse().ok()?;
            Some(SocketAddr::from(([127, 0, 0, 1], port)))
        };
        let mut command = Command::new("chromedriver");
        command.arg("--port=0").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let chromedriver = Process::start(&mut command);
        let (driver, profile) = (chromedriver.find(port), Folder::new("playground"));
        let arguments = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
            &format!("--user-data-dir={}", profile.path().display()),
        ];
        let capabilities =
            json!({ "capabilities": { "alwaysMatch": { "goog:chromeOptions": { "args": arguments } } } });
        let (status, answer) = exchange(driver, "POST", "/session", &capabilities.to_string());
        assert_eq!(status, 200, "{answer}");
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        let session = answer["value"]["sessionId"].as_str().expect("a session").to_owned();
        Self { driver, session, _chromedriver: chromedriver, _profile: profile }
    }

    fn command(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = if method == "POST" { body.to_string() } else { String::new() };
        let (status, answer) = exchange(self.driver, method, &format!("/session/{}/{path}", self.session), &body);
        assert_eq!(status, 200, "{path}: {answer}");
        serde_json::from_str::<Value>(&answer).expect("JSON")["value"].take()
    }

    fn open(&self, url: &str) {
        self.command("POST", "url", &json!({ "url": url }));
    }

    /// Runs a script in the page, and returns its result.
    fn script(&self, script: &str) -> Value {
        self.command("POST", "execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Waits until a condition of the page holds.
    fn wait_until(&self, condition: &str) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.script(&format!("return Boolean({condition})")) != true {
            assert!(Instant::now() < deadline, "{condition}: {}", self.script("return document.body.innerText"));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Types keys into the element of a selector.
    fn type_into(&self, selector: &str, keys: &str) {
        let element = self.command("POST", "element", &json!({ "using": "css selector", "value": selector }));
        let id = element.as_object().and_then(|element| element.values().next()).and_then(Value::as_str);
        let path = format!("element/{}/value", id.expect("an element"));
        self.command("POST", &path, &json!({ "text": keys }));
    }

    fn resize(&self, width: u32, height: u32) {
        let params = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.devtools("Emulation.setDeviceMetricsOverride", &params);
    }

    fn devtools(&self, command: &str, params: &Value) {
        self.command("POST", "goog/cdp/execute", &json!({ "cmd": command, "params": params }));
    }

    /// Keeps a screenshot in the folder that `KEEP_SCREENSHOTS` names.
    fn screenshot(&self, name: &str) {
        let Ok(folder) = env::var("KEEP_SCREENSHOTS") else { return };
        let image = self.command("GET", "screenshot", &Value::Null);
        let image = base64::engine::general_purpose::STANDARD.decode(image.as_str().expect("text"));
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(PathBuf::from(folder).join(name), image.expect("an image")).expect("a file");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Ends the browser, unless the driver has failed: a panic here would hide that.
        let _ = std::panic::catch_unwind(|| exchange(self.driver, "DELETE", &format!("/session/{}", self.session), ""));
    }
}

const TAB: &str = "\u{e004}";
const RIGHT: &str = "\u{e014}";

const FIRST_LIMIT: &str = "article:first-child .fields label:nth-child(2) input";
const FIRST_ALGORITHM: &str = "article:first-child select";

#[test]
#[ignore = "needs chromium and chromedriver: scripts/playground runs it"]
fn page_shows_decisions_and_works_with_a_keyboard() {
    let (_playground, address) = start();
    let browser = Browser::start();
    browser.resize(1400, 1200);
    let url = format!("http://{address}/");
    browser.open(&url);
    let requests = |count: u64| {
        browser
            .wait_until(&format!("document.getElementById('state').textContent.startsWith('{count} requests, drawn')"));
    };
    let text = |selector: &str| browser.script(&format!("return document.querySelector({selector:?}).textContent"));

    // Three limits on the double burst at a window's edge: the bounds are reached.
    requests(63);
    assert_eq!(browser.script("return document.querySelectorAll('article svg polygon').length > 8"), true);
    let rows = browser.script(
        "return [...document.querySelectorAll('article')].map((card) => card.querySelector('table').innerText)",
    );
    let rows: Vec<_> = rows.as_array().expect("cards").iter().map(|rows| rows.as_str().expect("text")).collect();
    for (rows, most) in rows.iter().zip(["10 (10)", "19 (19)", "10 (10)"]) {
        assert!(rows.contains(&format!("Most in 1 s (bound)\t{most}")), "{rows}");
    }
    browser.screenshot("light.png");

    // The keyboard reaches the presets, and Enter chooses one.
    browser.type_into("body", TAB);
    assert_eq!(browser.script("return document.activeElement.dataset.preset"), "Steady");
    browser.type_into("button[data-preset='Hammering']", "\u{e007}");
    requests(120);
    assert_eq!(text("button[aria-pressed=true]"), "Hammering");

    // An arrow key moves a slider; code and address follow.
    browser.type_into(FIRST_LIMIT, RIGHT);
    browser.wait_until("document.querySelector('.toml').textContent.includes('11 per 10s')");
    assert_eq!(text(".rust"), "Memory::new(Gcra::new(Quota::new(11, Duration::from_secs(10))).burst(10))");
    browser.type_into(FIRST_ALGORITHM, "leaky-queue");
    browser.wait_until("document.querySelector('.rust').textContent.includes('LeakyQueue')");
    assert_eq!(browser.script("return document.activeElement === document.querySelector('article select')"), true);

    // Another visit of the address shows the same comparison.
    let address_of_state = browser.command("GET", "url", &Value::Null);
    browser.open("about:blank");
    browser.open(address_of_state.as_str().expect("a URL"));
    browser.wait_until(
        "document.querySelector('.rust')?.textContent.startsWith('Memory::new(LeakyQueue::new(Quota::new(11,')",
    );

    // Limits are removed and added, up to three.
    browser.script("document.querySelectorAll('.remove')[2].click()");
    assert_eq!(
        browser.script("return [document.querySelectorAll('article').length, document.getElementById('add').disabled]"),
        json!([2, false])
    );
    browser.script("document.getElementById('add').click()");
    assert_eq!(
        browser.script("return [document.querySelectorAll('article').length, document.getElementById('add').disabled]"),
        json!([3, true])
    );

    // An error of a limit is shown at the limit.
    browser.type_into("article:nth-child(3) input[type=text]", "x");
    browser.wait_until("document.querySelectorAll('article svg').length === 3");

    // A log replaces the pattern.
    browser.script("document.querySelector('details').open = true");
    browser.type_into("#log", "time,client,clientx\n1,a,a\n2,a,b\n");
    requests(2);
    browser.script("document.getElementById('log').value = ''; document.getElementById('log').oninput()");
    requests(120);

    let drawn = "const time = () => Number(/drawn in (\\d+)/.exec(document.getElementById('state').textContent)[1]);";
    let mut times: Vec<_> = (0..9)
        .map(|_| {
            browser.script("document.getElementById('state').textContent = ''; changed()");
            requests(120);
            browser.script(&format!("{drawn} return time()")).as_u64().expect("milliseconds")
        })
        .collect();
    times.sort_unstable();
    println!("redrawn in {} ms (median of nine)", times[4]);

    // A phone: nothing is wider than the page.
    browser.resize(390, 3000);
    assert_eq!(browser.script("return document.documentElement.scrollWidth"), 390);
    browser.screenshot("phone.png");

    browser.resize(1400, 1200);
    browser.devtools(
        "Emulation.setEmulatedMedia",
        &json!({ "features": [{ "name": "prefers-color-scheme", "value": "dark" }] }),
    );
    assert_eq!(browser.script("return getComputedStyle(document.body).backgroundColor"), "rgb(13, 17, 23)");
    assert_eq!(
        browser.script("return getComputedStyle(document.querySelector('article rect')).fill"),
        "rgb(13, 17, 23)"
    );
    browser.screenshot("dark.png");

    let loaded = browser.script("return performance.getEntriesByType('resource').map((entry) => entry.name)");
    let loaded = loaded.as_array().expect("a list");
    assert!(loaded.iter().all(|name| name.as_str().is_some_and(|name| name.starts_with(&url))), "{loaded:?}");
}
