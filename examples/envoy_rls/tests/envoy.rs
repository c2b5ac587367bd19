//! Asks the service what Envoy asks. `scripts/gateways` runs it behind a real Envoy, and `scripts/foreign-clients` asks it
//! by Python's grpcio.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{Entry, RateLimitOverride};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::UInt64Value;
use tonic::Status;
use tonic::transport::Channel;

#[path = "../../../tests/servers/process.rs"]
mod process;

use self::process::{Folder, Process, listening};

const LIMITS: &str = r#"
domain = "edge"
reported = ["output"]

[[limits]]
name = "address"
when = "remote_address"
by = "remote_address"
algorithm = "sliding-log"
quota = "3/h"

[[limits]]
name = "login"
when = "path=/login, remote_address"
by = "all"
algorithm = "gcra"
quota = "2/day"

[[limits]]
name = "trial"
when = "remote_address"
by = "all"
algorithm = "fixed-window"
quota = "1/min"
shadow = true

[[limits]]
name = "tokens"
when = "model"
by = "model"
unit = "tokens"
algorithm = "token-bucket"
quota = "100 per 10min"

[[limits]]
name = "output"
when = "user, stream"
by = "user"
unit = "output"
algorithm = "ALGORITHM"
quota = "1000/day"
"#;

fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |&(key, value): &(&str, &str)| Entry { key: key.to_owned(), value: value.to_owned() };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..RateLimitDescriptor::default() }
}

fn address(address: &str) -> RateLimitDescriptor {
    descriptor(&[("remote_address", address)])
}

fn login(address: &str) -> RateLimitDescriptor {
    descriptor(&[("path", "/login"), ("remote_address", address)])
}

fn with_hits(mut descriptor: RateLimitDescriptor, hits: u64) -> RateLimitDescriptor {
    descriptor.hits_addend = Some(UInt64Value { value: hits });
    descriptor
}

/// Writes the limits of one process into a folder.
fn write(folder: &Folder, limits: &str) -> PathBuf {
    let path = folder.path().join("limits.toml");
    fs::write(&path, limits).expect("written");
    path
}

/// Starts the example on a free port. Its output includes its errors.
fn start(arguments: &[&Path]) -> Process {
    Process::start(listening(env!("CARGO_BIN_EXE_envoy_rls")).args(arguments).stderr(Stdio::piped()))
}

/// The example, and a client.
struct Service {
    client: RateLimitServiceClient<Channel>,
    _process: Process,
    _folder: Folder,
}

impl Service {
    async fn start(name: &str) -> Self {
        Self::start_with(name, "gcra").await
    }

    async fn start_with(name: &str, algorithm: &str) -> Self {
        let folder = Folder::new(name);
        let process = start(&[&write(&folder, &LIMITS.replace("ALGORITHM", algorithm))]);
        let address = format!("http://{}", process.address());
        let client = RateLimitServiceClient::connect(address).await.expect("a connection");
        Self { client, _process: process, _folder: folder }
    }

    async fn ask(
        &mut self,
        descriptors: &[RateLimitDescriptor],
        hits_addend: u32,
    ) -> Result<RateLimitResponse, Status> {
        let request = RateLimitRequest { domain: "edge".to_owned(), descriptors: descriptors.to_vec(), hits_addend };
        self.client.should_rate_limit(request).await.map(tonic::Response::into_inner)
    }

    /// The overall code, and for each descriptor its code and what remains.
    async fn codes(&mut self, descriptors: &[RateLimitDescriptor], hits_addend: u32) -> (Code, Vec<(Code, u32)>) {
        let response = self.ask(descriptors, hits_addend).await.expect("an answer");
        let statuses = response.statuses.iter().map(|status| (status.code(), status.limit_remaining)).collect();
        (response.overall_code(), statuses)
    }
}

fn field<'a>(response: &'a RateLimitResponse, name: &str) -> Option<&'a str> {
    response.response_headers_to_add.iter().find(|field| field.key == name).map(|field| field.value.as_str())
}

#[tokio::test]
async fn envoy_example_decides_all_descriptors_together() {
    let mut service = Service::start("envoy-together").await;
    let both = |client| [address(client), login(client)];
    assert_eq!(service.codes(&both("a"), 0).await, (Code::Ok, vec![(Code::Ok, 2), (Code::Ok, 1)]));
    assert_eq!(service.codes(&both("b"), 0).await, (Code::Ok, vec![(Code::Ok, 2), (Code::Ok, 0)]));
    // Denied by the logins of all addresses: the address is not charged. The shadow denies nothing.
    let denied = service.ask(&both("a"), 0).await.expect("an answer");
    assert_eq!(
        denied.statuses.iter().map(|status| (status.code(), status.limit_remaining)).collect::<Vec<_>>(),
        [(Code::Ok, 2), (Code::OverLimit, 0)]
    );
    let status = &denied.statuses[1];
    let limit = status.current_limit.as_ref().expect("a limit");
    assert_eq!((limit.name.as_str(), limit.requests_per_unit, limit.unit()), ("login", 2, Unit::Day));
    // Exact: twelve hours less the time since the first login, in microseconds. `Retry-After` is rounded up.
    let wait = status.duration_until_reset.expect("a wait");
    let wait = Duration::new(wait.seconds.try_into().expect("positive"), wait.nanos.try_into().expect("positive"));
    let half_a_day = Duration::from_secs(12 * 3_600 - 60)..Duration::from_secs(12 * 3_600);
    assert!(half_a_day.contains(&wait) && wait.subsec_micros() > 0, "{wait:?}");
    assert_eq!(field(&denied, "retry-after"), Some((wait.as_secs() + 1).to_string().as_str()));
    let policies = field(&denied, "ratelimit-policy").expect("the policies");
    assert!(policies.contains("\"login\";q=2;w=86400") && !policies.contains("trial"), "{policies}");
    assert!(String::from_utf8_lossy(&denied.raw_body).contains(r#""violated-policies":["login"]"#), "{denied:?}");
    assert_eq!(service.codes(&[address("a")], 0).await, (Code::Ok, vec![(Code::Ok, 1)]));
}

#[tokio::test]
async fn envoy_example_charges_the_hits_of_requests_and_descriptors() {
    let mut service = Service::start("envoy-hits").await;
    let model = |hits| with_hits(descriptor(&[("model", "large")]), hits);
    assert_eq!(service.codes(&[address("a"), model(60)], 2).await, (Code::Ok, vec![(Code::Ok, 1), (Code::Ok, 40)]));
    assert_eq!(service.codes(&[model(50)], 0).await.0, Code::OverLimit);
    // More than the limit ever allows: no duration helps.
    let exceeds = service.ask(&[model(101)], 0).await.expect("an answer");
    assert_eq!((exceeds.overall_code(), exceeds.statuses[0].duration_until_reset), (Code::OverLimit, None));
    assert_eq!(field(&exceeds, "retry-after"), None);
    assert_eq!(service.codes(&[descriptor(&[("model", "large")])], 7).await, (Code::Ok, vec![(Code::Ok, 33)]));
}

/// Calls of a model, one after the other: Envoy asks without hits, and reports 600 tokens. Two calls exceed 1000 a day, by
/// the second report, and no later call is admitted. A report is charged although the other limits deny, and denies nothing.
#[tokio::test]
async fn envoy_example_charges_reports_beyond_the_limit() {
    for algorithm in ["gcra", "token-bucket", "sliding-window", "fixed-window"] {
        let mut service = Service::start_with(&format!("envoy-reports-{algorithm}"), algorithm).await;
        let call = |user, hits| with_hits(descriptor(&[("user", user), ("stream", "1")]), hits);
        let mut admitted = Vec::new();
        for _ in 0..20 {
            let asked = service.ask(&[call("alice", 0)], 0).await.expect("an answer");
            admitted.push(asked.overall_code() == Code::Ok);
            if asked.overall_code() == Code::Ok {
                assert!(field(&asked, "retry-after").is_none());
                let _ = service.ask(&[call("alice", 600)], 0).await.expect("an answer");
            } else {
                assert!(field(&asked, "retry-after").is_some(), "{algorithm}: {asked:?}");
            }
        }
        let count = admitted.iter().filter(|is_admitted| **is_admitted).count();
        assert_eq!((count, &admitted[..3]), (2, &[true, true, false][..]), "{algorithm}: {admitted:?}");
        // 1000 exactly: nothing remains. The address has no fourth request, and a report with it is charged all the same.
        let mut service = Service::start_with(&format!("envoy-exact-{algorithm}"), algorithm).await;
        for (hits, code) in [(0, Code::Ok), (0, Code::Ok), (0, Code::Ok), (1000, Code::OverLimit)] {
            let answer = service.ask(&[call("bob", hits), address("b")], 0).await.expect("an answer");
            assert_eq!(answer.overall_code(), code, "{algorithm}: {answer:?}");
        }
        let denied = service.ask(&[call("bob", 0)], 0).await.expect("an answer");
        assert!(String::from_utf8_lossy(&denied.raw_body).contains("output"), "{algorithm}: {denied:?}");
    }
}

#[tokio::test]
async fn envoy_example_allows_what_no_limit_describes() {
    let mut service = Service::start("envoy-free").await;
    let others = [
        descriptor(&[("path", "/"), ("remote_address", "a")]),
        descriptor(&[("remote_address", "a"), ("path", "/login")]),
        descriptor(&[("path", "/login")]),
        descriptor(&[]),
    ];
    for _ in 0..5 {
        let free = service.ask(&others, 0).await.expect("an answer");
        assert!(free.statuses.iter().all(|status| status.code() == Code::Ok && status.current_limit.is_none()));
        assert_eq!((free.overall_code(), free.statuses.len()), (Code::Ok, 4));
        assert!(free.response_headers_to_add.is_empty(), "{free:?}");
    }
    let request = RateLimitRequest { domain: "another".to_owned(), descriptors: vec![login("a"); 9], hits_addend: 9 };
    let free = service.client.should_rate_limit(request).await.expect("an answer").into_inner();
    assert_eq!((free.overall_code(), free.statuses.len()), (Code::Ok, 9));
}

#[tokio::test]
async fn envoy_example_refuses_what_it_cannot_count() {
    let mut service = Service::start("envoy-refused").await;
    let negative = RateLimitDescriptor { is_negative_hits: true, ..address("a") };
    let limit = RateLimitOverride { requests_per_unit: 9, unit: 1 };
    let overridden = RateLimitDescriptor { limit: Some(limit), ..address("a") };
    for (descriptors, reason) in [
        (vec![negative], "negative hits are refused"),
        (vec![overridden], "a limit in the request is refused"),
        (vec![address("a"), address("b")], "it applies to two descriptors"),
        (vec![with_hits(address("a"), 3)], "give the limit a `unit`"),
    ] {
        let refused = service.ask(&descriptors, 0).await.expect_err("refused");
        assert!(refused.code() == tonic::Code::InvalidArgument && refused.message().contains(reason), "{refused}");
    }
    assert_eq!(service.codes(&[address("a")], 0).await, (Code::Ok, vec![(Code::Ok, 2)]), "nothing was charged");
}

#[test]
fn envoy_example_names_the_invalid_field() {
    for (index, (from, to, expected)) in [
        ("when = \"model\"\n", "", "limit \"tokens\", when: it names no descriptor"),
        ("by = \"model\"", "by = \"user\"", "limit \"tokens\", by: `when` has no entry \"user\""),
        (
            "\"sliding-log\"\nquota = \"3/h\"",
            "\"in-flight\"\nmax = 3",
            "limit \"address\", algorithm: Envoy does not report",
        ),
        ("quota = \"2/day\"", "quota = \"2/day\"\nunit = \"tokens\"", "limit \"tokens\", unit: limit \"login\" counts"),
        ("quota = \"2/day\"", "quota = \"2/aeon\"", "TOML parse error at line"),
        ("[\"output\"]", "[\"login\"]", "reported: there is no limit \"login\" with a `unit`"),
    ]
    .into_iter()
    .enumerate()
    {
        assert!(LIMITS.contains(from), "{from}");
        let folder = Folder::new(&format!("envoy-invalid-{index}"));
        let (status, printed) =
            start(&[&write(&folder, &LIMITS.replace("ALGORITHM", "gcra").replace(from, to))]).output();
        assert!(!status.success() && printed[0].contains(expected), "{printed:#?}");
    }
}

/// The file beside the example.
#[tokio::test]
async fn envoy_example_reads_its_own_file() {
    let process = start(&[]);
    let address = format!("http://{}", process.address());
    let mut client = RateLimitServiceClient::connect(address).await.expect("a connection");
    let descriptors = vec![descriptor(&[("remote_address", "a")]), with_hits(descriptor(&[("model", "large")]), 0)];
    let request = RateLimitRequest { domain: "edge".to_owned(), descriptors, hits_addend: 0 };
    let answer = client.should_rate_limit(request).await.expect("an answer").into_inner();
    let left: Vec<_> = answer.statuses.iter().map(|status| status.limit_remaining).collect();
    assert_eq!(left, [4, 9_999]);
}
