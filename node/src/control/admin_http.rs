//! The admin HTTP server: `/metrics`, `/healthz` (the process lives), `/readyz` (it serves clients).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;

use crate::clock::service::held_detail;
use crate::clock::system::SystemClock;
use crate::control::admin_socket::AdminListener;
use crate::control::service::Control;

/// What the handlers share.
#[derive(Clone)]
pub struct AdminState {
    /// The control thread's service.
    pub control: Arc<Control>,
    /// The owner's clock.
    pub clock: SystemClock,
    /// Whether clients are served.
    pub ready: Arc<AtomicBool>,
}

/// Serves until the process ends.
///
/// # Errors
/// When the listener fails.
pub async fn serve(listener: tokio::net::TcpListener, state: AdminState) -> std::io::Result<()> {
    let routes = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .with_state(state);
    axum::serve(AdminListener::new(listener), routes).await
}

async fn metrics(State(state): State<AdminState>) -> impl IntoResponse {
    let text = state.control.scrape().await;
    (
        [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
        text,
    )
}

async fn ready(State(state): State<AdminState>) -> impl IntoResponse {
    if state.ready.load(Ordering::Acquire) {
        // A held clock is an alarm, and no reason to take the clients away: producing goes on.
        let detail =
            held_detail(&state.clock).map_or_else(String::new, |detail| format!("alarm: {detail}\n"));
        (StatusCode::OK, format!("ready\n{detail}"))
    } else {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "starting or draining\n".to_owned(),
        )
    }
}
