//! Uploads that wait, over HTTP: the server notices that clients leave. Time is virtual, and connections are pipes.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::routing::any;
use futures_util::stream;
use http::{Request, StatusCode};
use http_body::Frame;
use http_body_util::StreamBody;
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tower_ratelimit::observe::Event;
use tower_ratelimit::{Gcra, Quota, ReadAheadLayer, TokioClock};

use crate::process::{Folder, Process, free_port, wait_until};
use crate::support::{BoxExecutor, Task, memory, page_layer, spawn};

const SECOND: Duration = Duration::from_secs(1);
/// Longer than what a network needs for a packet, so that the server reads twice.
const BETWEEN_PACKETS: Duration = Duration::from_millis(20);
/// Above the layer's default bound.
const LARGE: usize = 200_000;

/// How a client sends its request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Sends {
    Get,
    OnePacket,
    /// The fields and half of the body first.
    TwoPackets,
    /// The same, of 20 000 bytes: more than the buffer of nginx.
    Medium,
    /// The same, of a body in chunks of unknown length.
    TwoChunks,
    /// Two packets of a body above the layer's bound.
    Large,
    /// Two packets that do not complete the body.
    Incomplete,
}

impl Sends {
    fn packets(self) -> Vec<Vec<u8>> {
        let post =
            |fields: &str, body: &str| format!("POST / HTTP/1.1\r\nhost: a\r\n{fields}\r\n\r\n{body}").into_bytes();
        match self {
            Self::Get => vec![b"GET / HTTP/1.1\r\nhost: a\r\n\r\n".to_vec()],
            Self::OnePacket => vec![post("content-length: 30", &"a".repeat(30))],
            Self::TwoPackets => vec![post("content-length: 30", &"a".repeat(15)), vec![b'a'; 15]],
            Self::TwoChunks => {
                vec![post("transfer-encoding: chunked", "5\r\nhello\r\n"), b"5\r\nworld\r\n0\r\n\r\n".to_vec()]
            }
            Self::Medium => vec![post("content-length: 20000", &"a".repeat(10_000)), vec![b'a'; 10_000]],
            Self::Large => {
                vec![post(&format!("content-length: {LARGE}"), &"a".repeat(LARGE / 2)), vec![b'a'; LARGE / 2]]
            }
            Self::Incomplete => vec![post("content-length: 45", &"a".repeat(15)), vec![b'a'; 15]],
        }
    }

    /// Sends the request.
    async fn send(self, stream: &mut (impl AsyncWrite + Unpin)) {
        for (index, packet) in self.packets().into_iter().enumerate() {
            if index > 0 {
                sleep(BETWEEN_PACKETS).await;
            }
            // The server may not read all of a body: then this waits, until the client gives up.
            if stream.write_all(&packet).await.is_err() {
                return;
            }
        }
    }
}

/// Reads up to the status of a response.
async fn read_status(stream: &mut (impl AsyncRead + Unpin)) -> Option<StatusCode> {
    let mut response = Vec::new();
    while response.len() < 12 {
        if stream.read_buf(&mut response).await.ok()? == 0 {
            return None;
        }
    }
    StatusCode::from_bytes(&response[9..12]).ok()
}

/// Sends a request over HTTP/1.1, and returns the status of the response.
async fn request(sends: Sends, stream: impl AsyncRead + AsyncWrite) -> Option<StatusCode> {
    let (mut receiver, mut sender) = tokio::io::split(Box::pin(stream));
    tokio::join!(sends.send(&mut sender), read_status(&mut receiver)).1
}

/// Sends a body in two frames over HTTP/2.
async fn request_http2(stream: DuplexStream) -> Option<StatusCode> {
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(BoxExecutor, TokioIo::new(stream)).await.ok()?;
    let _connection = AbortOnDrop(spawn(async move { drop(connection.await) }));
    let frames = stream::unfold(0, |index| async move {
        sleep(BETWEEN_PACKETS).await;
        (index < 2).then(|| (Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(b"hello"))), index + 1))
    });
    let request = Request::post("http://a/").body(StreamBody::new(Box::pin(frames))).expect("a request");
    Some(sender.send_request(request).await.ok()?.status())
}

struct AbortOnDrop(Task<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The numbers of waits that have started and ended.
#[derive(Clone, Default)]
struct Waits(Arc<[AtomicUsize; 2]>);

impl Waits {
    fn observe(&self, event: &Event<'_>) {
        match event {
            Event::WaitStarted => self.0[0].fetch_add(1, Ordering::SeqCst),
            Event::WaitEnded { .. } => self.0[1].fetch_add(1, Ordering::SeqCst),
            _ => return,
        };
    }

    fn get(&self) -> (usize, usize) {
        (self.0[0].load(Ordering::SeqCst), self.0[1].load(Ordering::SeqCst))
    }
}

/// Which layers the server has.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Server {
    /// The rate limit layer reads no bodies.
    NotReading,
    /// The rate limit layer with its defaults.
    Default,
    /// `ReadAheadLayer` reads instead.
    ReadAheadLayer,
    /// The rate limit layer reads no bodies, and serves the newest request first.
    NewestFirst,
}

/// A server that reads the body, behind a limit with a queue.
fn app(server: Server, quota: Quota, max_waiters: usize) -> (Router, Waits, ReadAheadLayer) {
    let waits = Waits::default();
    let observed = waits.clone();
    let limiter = memory(Gcra::new(quota).burst(1), TokioClock::new());
    let limit = page_layer(limiter).max_wait(10 * SECOND).max_waiters(max_waiters);
    let limit = match server {
        Server::Default => limit,
        Server::NotReading | Server::ReadAheadLayer => limit.read_ahead(0, 0),
        Server::NewestFirst => limit.read_ahead(0, 0).newest_first(),
    };
    let limit = limit.observe(move |event: &Event<'_>| observed.observe(event));
    let app = Router::new().route("/", any(async |body: Bytes| format!("{}", body.len()))).layer(limit);
    let layer = ReadAheadLayer::new();
    let app = if server == Server::ReadAheadLayer { app.layer(layer.clone()) } else { app };
    (app, waits, layer)
}

/// Serves one connection, and returns the client's end.
fn connect(app: &Router) -> DuplexStream {
    let (client, server) = duplex(16 << 10);
    let service = TowerToHyperService::new(app.clone());
    spawn(async move {
        let _ = auto::Builder::new(BoxExecutor).serve_connection(TokioIo::new(server), service).await;
    });
    client
}

const READING: [Server; 2] = [Server::Default, Server::ReadAheadLayer];

const ALL: [Sends; 7] =
    [Sends::Get, Sends::OnePacket, Sends::TwoPackets, Sends::Medium, Sends::TwoChunks, Sends::Large, Sends::Incomplete];

/// A client leaves while it waits: whether its place in the queue is free at once.
async fn leaves(server: Server, sends: Option<Sends>) -> bool {
    let (app, waits, layer) = app(server, Quota::per_minute(6), 1);
    let client = |sends: Option<Sends>| {
        let stream = connect(&app);
        spawn(async move {
            match sends {
                Some(sends) => request(sends, stream).await,
                None => request_http2(stream).await,
            }
        })
    };
    assert_eq!(client(Some(Sends::Get)).await.expect("no panic"), Some(StatusCode::OK));
    let waiting = client(sends);
    sleep(SECOND).await;
    assert_eq!(waits.get(), (1, 0), "{sends:?} waits");
    let rejected = client(sends.filter(|sends| *sends != Sends::Incomplete));
    assert_eq!(rejected.await.expect("no panic"), Some(StatusCode::TOO_MANY_REQUESTS), "the only place is taken");

    waiting.abort();
    sleep(Duration::from_millis(1)).await;
    let is_free = waits.get() == (1, 1);
    assert_eq!(layer.buffered_bytes() > 0, server == Server::ReadAheadLayer && !is_free);
    if is_free {
        let served = client(Some(Sends::TwoPackets)).await.expect("no panic");
        assert_eq!((served, waits.get()), (Some(StatusCode::OK), (2, 2)), "the start goes to the next request");
    }
    is_free
}

/// Over HTTP/1.1 hyper reads nothing while nobody polls the body, unless it came with the fields.
#[tokio::test(start_paused = true)]
async fn waiting_upload_leaves() {
    for sends in ALL {
        for server in READING {
            let is_seen = leaves(server, Some(sends)).await;
            assert_eq!(is_seen, sends != Sends::Large, "{server:?}, {sends:?}: what is above the bound is not seen");
        }
        let is_seen = leaves(Server::NotReading, Some(sends)).await;
        assert_eq!(is_seen, matches!(sends, Sends::Get | Sends::OnePacket), "{sends:?}: the tests prove nothing");
    }
    for server in [Server::NotReading, Server::Default, Server::ReadAheadLayer] {
        assert!(leaves(server, None).await, "{server:?}, HTTP/2");
    }
}

/// The client receives no `100 Continue` while its request waits.
#[tokio::test(start_paused = true)]
async fn expecting_client_is_not_asked_for_its_body_before_the_start() {
    for server in READING {
        expects(server).await;
    }
}

async fn expects(server: Server) {
    let (app, waits, _) = app(server, Quota::per_minute(6), 1);
    assert_eq!(request(Sends::Get, connect(&app)).await, Some(StatusCode::OK));
    let mut stream = connect(&app);
    let fields = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\nexpect: 100-continue\r\n\r\n";
    stream.write_all(fields).await.expect("sent");
    assert!(timeout(9 * SECOND, stream.read_u8()).await.is_err(), "nothing before the start");
    assert_eq!(waits.get(), (1, 0));
    assert_eq!(read_status(&mut stream).await, Some(StatusCode::CONTINUE));
    stream.write_all(b"hello").await.expect("sent");
    let mut response = vec![0; 200];
    let length = stream.read(&mut response).await.expect("a response");
    assert!(String::from_utf8_lossy(&response[..length]).contains("200 OK"));
}

/// An invalid body ends the wait with a response, because its client may still be there.
#[tokio::test(start_paused = true)]
async fn invalid_body_ends_the_wait() {
    for server in READING {
        let (app, waits, _) = app(server, Quota::per_minute(6), 1);
        assert_eq!(request(Sends::Get, connect(&app)).await, Some(StatusCode::OK));
        let mut stream = connect(&app);
        let fields = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n";
        stream.write_all(fields).await.expect("sent");
        sleep(SECOND).await;
        assert_eq!(waits.get(), (1, 0));
        let before = Instant::now();
        stream.write_all(b"no length\r\n").await.expect("sent");
        assert_eq!(read_status(&mut stream).await, Some(StatusCode::BAD_REQUEST));
        assert_eq!((waits.get(), before.elapsed()), ((1, 1), Duration::ZERO));
    }
}

/// Sends 20 requests a second to a limit of 10 a second, from clients that give up after 2 s. Returns how many received
/// 200 in each 5 s.
async fn goodput<F>(seconds: u32, request: impl Fn() -> F) -> Vec<usize>
where
    F: Future<Output = Option<StatusCode>> + Send + 'static,
{
    let (started, served) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
    for index in 0..seconds * 20 {
        // Not in step with the starts: otherwise a start would fall on the instant at which its client gives up.
        let jitter = Duration::from_millis(if index == 0 { 0 } else { 1 + u64::from(index * 17 % 41) });
        sleep_until(started + SECOND * index / 20 + jitter).await;
        let (request, served) = (request(), Arc::clone(&served));
        spawn(async move {
            if timeout(2 * SECOND, request).await == Ok(Some(StatusCode::OK)) {
                served.lock().expect("no panic").push(started.elapsed());
            }
        });
    }
    sleep_until(started + SECOND * seconds).await;
    let mut spans = vec![0; seconds as usize / 5];
    for at in served.lock().expect("no panic").iter() {
        if let Some(count) = spans.get_mut(usize::try_from(at.as_secs() / 5).expect("a short time")) {
            *count += 1;
        }
    }
    spans
}

async fn goodput_over_pipes(server: Server, sends: Option<Sends>) -> Vec<usize> {
    let (app, ..) = app(server, Quota::per_second(10), 10_000);
    let spans = goodput(20, move || {
        let stream = connect(&app);
        async move {
            match sends {
                Some(sends) => request(sends, stream).await,
                None => request_http2(stream).await,
            }
        }
    });
    let spans = spans.await;
    println!(
        "{server:?}, {}: 200 per 5 s, of 50: {spans:?}",
        sends.map_or("HTTP/2".into(), |sends| format!("{sends:?}"))
    );
    spans
}

/// At least 95 % of the capacity in every 5 s, up to the bound of the layer.
#[tokio::test(start_paused = true)]
async fn goodput_of_waiting_uploads() {
    let is_served = |spans: &[usize]| spans.iter().all(|&served| served >= 48);
    // Each kind of request by one of the servers.
    let all = ALL.into_iter().filter(|sends| *sends != Sends::Incomplete).map(Some).chain([None]);
    for (sends, server) in all.zip(READING.into_iter().cycle()) {
        let spans = goodput_over_pipes(server, sends).await;
        assert_eq!(is_served(&spans), sends != Some(Sends::Large), "{server:?}, {sends:?}: {spans:?}");
    }
    let not_reading = goodput_over_pipes(Server::NotReading, Some(Sends::TwoPackets)).await;
    assert!(not_reading[1..].iter().all(|&served| served == 0), "{not_reading:?}: the tests prove nothing");
    // What is above the bound: the newest request is one whose client probably still waits.
    let newest_first = goodput_over_pipes(Server::NewestFirst, Some(Sends::Large)).await;
    assert!(is_served(&newest_first), "{newest_first:?}");
}

/// nginx that buffers requests, in front of the server.
struct Nginx {
    _process: Process,
    _folder: Folder,
    address: SocketAddr,
}

impl Nginx {
    fn start(program: &Path, server: SocketAddr) -> Self {
        // nginx does not print a port that the system chooses.
        let (address, folder) = (SocketAddr::from(([127, 0, 0, 1], free_port())), Folder::new("nginx"));
        let at = folder.path().display();
        let config = format!(
            "daemon off; master_process off; worker_processes 1; pid {at}/pid; error_log {at}/error.log;\n\
             events {{ worker_connections 4096; }}\n\
             http {{ access_log off; client_max_body_size 8m;\n\
             client_body_temp_path {at}/body; proxy_temp_path {at}/proxy; fastcgi_temp_path {at}/fastcgi;\n\
             uwsgi_temp_path {at}/uwsgi; scgi_temp_path {at}/scgi;\n\
             server {{ listen {address}; location / {{ proxy_pass http://{server}; }} }} }}\n"
        );
        let file = folder.path().join("nginx.conf");
        std::fs::write(&file, config).expect("the settings");
        let mut command = Command::new(program);
        let process = Process::start(command.arg("-p").arg(folder.path()).arg("-c").arg(file).stderr(Stdio::null()));
        wait_until("nginx listens", || std::net::TcpStream::connect(address).is_ok());
        Self { _process: process, _folder: folder, address }
    }
}

/// Prints the goodput over TCP and in real time: `scripts/goodput` runs it. `NGINX` names the program.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement in real time, which scripts/goodput runs"]
async fn measured_goodput_of_uploads() {
    let program = PathBuf::from(std::env::var_os("NGINX").expect("`NGINX` names the program: see scripts/goodput"));
    println!("\n20 requests a second at 10 a second, from clients that give up after 2 s: 200 per 5 s, of 50\n");
    println!("| Request | not reading | default | `newest_first` | nginx: not reading | default | `newest_first` |");
    println!("|---|---|---|---|---|---|---|");
    let rows = [
        (Sends::Get, "GET"),
        (Sends::OnePacket, "POST, 30 bytes in one packet"),
        (Sends::TwoPackets, "POST, 30 bytes in two packets"),
        (Sends::Medium, "POST, 20 kB"),
        (Sends::Large, "POST, 200 kB (above the bound)"),
    ];
    for (sends, name) in rows {
        let cells = [Server::NotReading, Server::Default, Server::NewestFirst]
            .map(|server| spawn(measure(server, sends, program.clone())));
        let (mut direct, mut proxied) = (Vec::new(), Vec::new());
        for cell in cells {
            let (without_proxy, behind_proxy) = cell.await.expect("no panic");
            direct.push(without_proxy);
            proxied.push(behind_proxy);
        }
        println!("| {name} | {} | {} |", direct.join(" | "), proxied.join(" | "));
    }
}

/// Returns the goodput directly, and behind nginx.
async fn measure(server: Server, sends: Sends, program: PathBuf) -> (String, String) {
    let run = async |nginx: Option<&Path>| {
        let (app, ..) = app(server, Quota::per_second(10), 10_000);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let mut address = listener.local_addr().expect("an address");
        let _server = AbortOnDrop(spawn(async move { axum::serve(listener, app).await.expect("it serves") }));
        let mut proxy = None;
        if let Some(program) = nginx {
            let started = Nginx::start(program, address);
            address = started.address;
            proxy = Some(started);
        }
        let spans = goodput(15, move || async move {
            let stream = TcpStream::connect(address).await.ok()?;
            stream.set_nodelay(true).ok()?;
            request(sends, stream).await
        });
        let spans = spans.await;
        drop(proxy);
        spans.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    };
    (run(None).await, run(Some(&program)).await)
}
