//! Files of the page, embedded in the binary.

use axum::Router;
use axum::http::header;
use axum::routing::get;

/// Path, content and media type of each file of the page.
pub static FILES: [(&str, &str, &str); 7] = [
    ("/", include_str!("assets/page.html"), "text/html; charset=utf-8"),
    ("/page/page.css", include_str!("assets/page.css"), "text/css; charset=utf-8"),
    ("/page/main.js", include_str!("assets/main.js"), SCRIPT),
    ("/page/words.js", include_str!("assets/words.js"), SCRIPT),
    ("/page/tree.js", include_str!("assets/tree.js"), SCRIPT),
    ("/page/tenants.js", include_str!("assets/tenants.js"), SCRIPT),
    ("/page/icon.svg", include_str!("assets/icon.svg"), "image/svg+xml"),
];
const SCRIPT: &str = "text/javascript; charset=utf-8";

pub fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    FILES.iter().fold(Router::new(), |router, (path, text, kind)| {
        router.route(path, get(move || async move { ([(header::CONTENT_TYPE, *kind)], *text) }))
    })
}
