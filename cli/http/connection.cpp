#include "http/connection.h"

#include <sys/socket.h>

#include <fmt/format.h>

#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/rfc7230.hpp>
#include <boost/beast/http/write.hpp>
#include <cerrno>
#include <cstring>
#include <limits>
#include <new>
#include <nlohmann/json.hpp>

#include "http/connections.h"
#include "http/target.h"

namespace qkv::cli {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;

constexpr std::size_t kReadSize = 16 << 10;
constexpr std::size_t kMostDrained = 4 << 20;  // of a refused request, so that its sender reads why
constexpr std::chrono::milliseconds kDrainTime{2'000};
constexpr const char* kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

std::string_view view(boost::string_view s) { return {s.data(), s.size()}; }

// The machine at the other end; an IPv6 host has a whole /64.
std::string client_of(const asio::ip::tcp::socket& socket) {
  boost::system::error_code error;
  const asio::ip::address address = socket.remote_endpoint(error).address();
  if (error || !address.is_v6()) return address.to_string();
  const asio::ip::address_v6 v6 = address.to_v6();
  if (v6.is_v4_mapped()) return asio::ip::make_address_v4(asio::ip::v4_mapped, v6).to_string();
  const auto bytes = v6.to_bytes();
  return std::string(bytes.begin(), bytes.begin() + 8);
}

std::string bearer_of(std::string_view authorization) {
  constexpr std::string_view kBearer = "Bearer ";
  return authorization.starts_with(kBearer) ? std::string(authorization.substr(kBearer.size()))
                                            : "";
}

ViewerResponse refusal(int status, const std::string& why) {
  return {.status = status,
          .type = "application/json",
          .body = nlohmann::json{{"error", why}}.dump(-1, ' ', false,
                                                      nlohmann::json::error_handler_t::replace)};
}

void set_headers(http::fields& headers) {
  headers.set("X-Content-Type-Options", "nosniff");
  headers.set("X-Frame-Options", "DENY");
  headers.set("Referrer-Policy", "no-referrer");
  headers.set("Cache-Control", "no-store");
  headers.set("Content-Security-Policy",
              "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
              "img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'");
}

// Never throws: an exception on a worker would end the process.
ViewerResponse answer_of(Viewer& viewer, const ViewerRequest& request) try {
  return viewer(request);
} catch (const std::bad_alloc&) {
  return {.status = 503, .type = "application/json", .body = R"({"error":"out of memory"})"};
}

}  // namespace

Connection::Connection(asio::ip::tcp::socket socket, HttpShared& shared)
    : shared_(shared),
      stream_(std::move(socket)),
      buffer_(shared.limits.head + kReadSize),
      gone_(std::make_shared<std::atomic<bool>>(false)),
      client_(client_of(stream_.socket())),
      since_(Clock::now()) {
  Error ignored;
  stream_.socket().set_option(asio::ip::tcp::no_delay(true), ignored);
}

auto Connection::then(Step step) {
  return [self = shared_from_this(), step](Error error, std::size_t) {
    if (!self->closed_) (self.get()->*step)(error);
  };
}

void Connection::enter(State state) {
  state_ = state;
  since_ = Clock::now();
}

void Connection::start() { read_head(); }

void Connection::close() {
  if (closed_) return;
  closed_ = true;
  cancel();
  Error ignored;
  stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
  stream_.close();
  shared_.connections.remove(*this);
}

void Connection::end() {
  ending_ = true;
  if (state_ == State::waiting) close();
  if (state_ == State::answering) cancel();
}

// A client that asks again has a while to do so; its deadline starts with the first byte.
void Connection::next_request() {
  if (ending_) return close();
  if (buffer_.size() > 0) return read_head();
  enter(State::waiting);
  stream_.expires_after(shared_.limits.idle_time);
  stream_.async_read_some(buffer_.prepare(kReadSize),
                          [self = shared_from_this()](Error error, std::size_t count) {
                            if (self->closed_) return;
                            if (error) return self->close();
                            self->buffer_.commit(count);
                            self->read_head();
                          });
}

void Connection::read_head() {
  enter(State::waiting);
  stream_.expires_after(shared_.limits.head_time);
  parser_.emplace();
  parser_->header_limit(static_cast<std::uint32_t>(shared_.limits.head));
  // Looked at in inadmissible(), enforced in read_body(). Boost 1.74 takes "none" for no byte at
  // all.
  parser_->body_limit(std::numeric_limits<std::uint64_t>::max());
  http::async_read_header(stream_, buffer_, *parser_, then(&Connection::on_head));
}

void Connection::on_head(Error error) {
  keep_alive_ = head_only_ = false;
  request_ = {};
  if (error) return refuse_unparsable(error);
  if (const std::optional<ViewerResponse> why = inadmissible()) return write(*why);
  keep_alive_ = parser_->get().keep_alive();
  if (parser_->is_done()) return answer();
  if (parser_->get().count(http::field::expect) == 0) return read_body();
  asio::async_write(stream_, asio::buffer(kContinue, std::strlen(kContinue)),
                    [self = shared_from_this()](Error failed, std::size_t) {
                      if (self->closed_) return;
                      if (failed) return self->close();
                      self->read_body();
                    });
}

// Everything that a head can be refused for, before a byte of a body is read.
std::optional<ViewerResponse> Connection::inadmissible() {
  const auto& head = parser_->get();
  const auto once = [&](http::field field) { return head.count(field) <= 1; };
  if (head.count(http::field::host) != 1) return refusal(400, "a request has one Host");
  if (!once(http::field::origin) || !once(http::field::authorization)) {
    return refusal(400, "a request has at most one Origin and one Authorization");
  }
  const std::optional<HttpTarget> target = parse_target(view(head.target()));
  if (!target) return refusal(400, "the request line has no path that can be read");
  request_ = {.method = std::string(view(head.method_string())),
              .path = target->path,
              .query = target->query,
              .host = std::string(view(head[http::field::host])),
              .token = bearer_of(view(head[http::field::authorization])),
              .origin = std::string(view(head[http::field::origin]))};
  if (head.count(http::field::authorization) == 0) {
    for (const auto& [name, value] : target->query) {
      if (name == "token") request_.token = value;
    }
  }
  if (std::optional<ViewerResponse> why = shared_.viewer.refuse(request_)) return why;
  if (head.count(http::field::content_encoding) > 0) {
    return refusal(415, "a body is taken as it is, without a Content-Encoding");
  }
  if (head.count(http::field::transfer_encoding) > 0 && !parser_->chunked()) {
    return refusal(501, "of transfer encodings only chunked is known");
  }
  if (head.count(http::field::expect) > 0 &&
      !boost::beast::iequals(head[http::field::expect], "100-continue")) {
    return refusal(417, "of expectations only 100-continue is known");
  }
  const auto length = parser_->content_length();
  if (length && *length > shared_.limits.body) {
    return refusal(
        413, fmt::format("the body is {} bytes long, more than {}", *length, shared_.limits.body));
  }
  return {};
}

void Connection::read_body() {
  enter(State::waiting);
  stream_.expires_after(shared_.limits.body_time);
  parser_->body_limit(shared_.limits.body);
  http::async_read(stream_, buffer_, *parser_, then(&Connection::on_body));
}

void Connection::on_body(Error error) {
  if (error) {
    keep_alive_ = false;
    return refuse_unparsable(error);
  }
  answer();
}

void Connection::answer() {
  request_.body = std::move(parser_->get().body());
  gone_ = std::make_shared<std::atomic<bool>>(false);
  request_.cancelled = [gone = gone_] { return gone->load(); };
  head_only_ = request_.method == "HEAD";
  enter(State::answering);
  stream_.expires_never();
  watch_for_departure();
  ++shared_.running;
  asio::post(shared_.workers, [self = shared_from_this()] {
    auto response =
        std::make_shared<ViewerResponse>(answer_of(self->shared_.viewer, self->request_));
    asio::post(self->shared_.io, [self, response] { self->finish(std::move(*response)); });
  });
}

void Connection::finish(ViewerResponse answer) {
  --shared_.running;
  if (closed_) return;
  Error ignored;
  stream_.socket().cancel(ignored);  // the watch for a departure
  write(std::move(answer));
}

// While a worker computes, the end of the stream means that the client has left. A
// client that has sent more than its request is not watched further.
void Connection::watch_for_departure() {
  stream_.socket().async_wait(
      asio::ip::tcp::socket::wait_read, [self = shared_from_this(), gone = gone_](Error error) {
        if (error || self->closed_ || self->gone_ != gone) return;
        if (self->state_ != State::answering) return;
        char byte = 0;
        const auto count =
            ::recv(self->stream_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        if (count == 0 || (count < 0 && errno != EAGAIN)) self->close();
      });
}

void Connection::refuse(int status, const std::string& why) { write(refusal(status, why)); }

// A head or body that is not HTTP, or too long, gets an answer; a broken connection is closed.
void Connection::refuse_unparsable(Error error) {
  const bool too_long = error == http::error::header_limit || error == http::error::buffer_overflow;
  if (too_long) return refuse(431, "the headers are too long");
  if (error == http::error::body_limit) {
    return refuse(413, fmt::format("the body is longer than {} bytes", shared_.limits.body));
  }
  const bool unparsable =
      error.category() == http::make_error_code(http::error::bad_method).category() &&
      error != http::error::end_of_stream && error != http::error::partial_message;
  if (!unparsable) return close();
  refuse(400, "this is no HTTP request: " + error.message());
}

void Connection::write(ViewerResponse answer) {
  if (ending_) keep_alive_ = false;
  response_ = {};
  response_.version(11);
  response_.result(static_cast<unsigned>(answer.status));
  set_headers(response_);
  for (const auto& [name, value] : answer.headers) response_.set(name, value);
  response_.set(http::field::content_type, answer.type);
  response_.keep_alive(keep_alive_);
  response_.content_length(answer.body.size());
  if (!head_only_) response_.body() = std::move(answer.body);
  enter(State::writing);
  stream_.expires_after(shared_.limits.answer_time);
  shared_.connections.make_room_for_answers();
  if (closed_) return;
  serializer_.emplace(response_);
  http::async_write(stream_, *serializer_, then(&Connection::on_written));
}

void Connection::on_written(Error error) {
  if (error) return close();
  serializer_.reset();
  response_ = {};
  if (keep_alive_) return next_request();
  Error ignored;
  stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  if (ending_) return close();
  enter(State::waiting);
  stream_.expires_after(kDrainTime);
  drain();
}

// Closing with bytes unread would reset the connection and take the answer with it.
void Connection::drain() {
  buffer_.consume(buffer_.size());
  stream_.async_read_some(buffer_.prepare(kReadSize),
                          [self = shared_from_this()](Error error, std::size_t count) {
                            if (self->closed_) return;
                            self->drained_ += count;
                            if (error || self->drained_ > kMostDrained) return self->close();
                            self->drain();
                          });
}

}  // namespace qkv::cli
