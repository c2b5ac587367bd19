//! The path of a request through the components.

use super::blocks::{arrow, block, frame};
use tower_ratelimit_simulate::chart::{ALLOWED, DENIED, INK, REMAINING, svg};

pub(super) fn picture() -> String {
    svg((800, 330), |area| {
        frame(area, (130, 20), (670, 165), "RateLimitLayer")?;
        block(area, (10, 60), 90, INK, &["request"])?;
        block(area, (150, 60), 130, INK, &["key extractor", "PeerIp, Credential, .."])?;
        block(area, (330, 60), 140, INK, &["limiter", "acquire(key, cost)"])?;
        block(area, (520, 60), 130, INK, &["decision", "allowed or denied"])?;
        block(area, (690, 60), 100, ALLOWED, &["inner service", "if allowed"])?;
        block(area, (690, 115), 100, DENIED, &["responder", "429, if denied"])?;
        for (from, to) in
            [((100, 80), (150, 80)), ((280, 80), (330, 80)), ((470, 80), (520, 80)), ((650, 80), (690, 80))]
        {
            arrow(area, &[from, to])?;
        }
        arrow(area, &[(585, 100), (585, 135), (690, 135)])?;

        block(area, (190, 205), 180, INK, &["Memory", "a table of states"])?;
        block(area, (430, 205), 180, INK, &["Redis", "one script for all processes"])?;
        arrow(area, &[(380, 100), (380, 185), (280, 185), (280, 205)])?;
        arrow(area, &[(420, 100), (420, 185), (520, 185), (520, 205)])?;
        block(
            area,
            (190, 275),
            420,
            REMAINING,
            &["algorithm", "(state, now, cost) to (decision, next state): in Rust and in Lua"],
        )?;
        arrow(area, &[(280, 245), (280, 275)])?;
        arrow(area, &[(520, 245), (520, 275)])
    })
    .expect("a picture")
}
