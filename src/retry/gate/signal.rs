use std::time::Duration;

/// What a response says about the limits of its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GateSignal {
    /// The server processed the request.
    Served {
        /// The number of further requests that the server would process now, if it states one.
        remaining: Option<u64>,
    },
    /// The server processed the request, and has nothing more available for this time.
    ServedLast(Duration),
    /// The server rejected the request for this time, or for an unknown time.
    Rejected(Option<Duration>),
    /// The server rejected the request, and more is available in less than a second. The gate spaces the requests
    /// instead of closing.
    TooFast,
}

/// Reads from a response what it says about the limits of its server.
///
/// A closure `Fn(&Response) -> GateSignal` implements the trait.
pub trait ReadGateSignal<Response> {
    /// Reads a response.
    fn read(&self, response: &Response) -> GateSignal;
}

impl<Response, F: Fn(&Response) -> GateSignal> ReadGateSignal<Response> for F {
    fn read(&self, response: &Response) -> GateSignal {
        self(response)
    }
}
