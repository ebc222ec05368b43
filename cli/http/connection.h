// One client's connection: head, admission, body, answer, and again. All of it runs on the I/O
// thread but Viewer::operator().
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/serializer.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "http/server.h"

namespace qkv::cli {

class Connections;

// What the connections of a server share; it outlives them.
struct HttpShared {
  Viewer& viewer;
  const HttpLimits& limits;
  boost::asio::io_context& io;
  boost::asio::thread_pool& workers;
  Connections& connections;
  int running = 0;  // requests that a worker has or will have
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Clock = std::chrono::steady_clock;
  enum class State { waiting, answering, writing };  // waiting: for bytes of the client

  Connection(boost::asio::ip::tcp::socket socket, HttpShared& shared);

  void start();
  void close();  // at once
  void end();    // what is being answered may go out, but nothing is answered after it
  void cancel() { gone_->store(true); }

  State state() const { return state_; }
  Clock::time_point since() const { return since_; }  // of this state
  const std::string& client() const { return client_; }
  std::size_t unsent() const { return state_ == State::writing ? response_.body().size() : 0; }

 private:
  using Error = boost::system::error_code;
  using Body = boost::beast::http::string_body;
  using Parser = boost::beast::http::request_parser<Body>;
  using Step = void (Connection::*)(Error);

  auto then(Step step);
  void enter(State state);
  void next_request();
  void read_head();
  void on_head(Error error);
  std::optional<ViewerResponse> inadmissible();
  void read_body();
  void on_body(Error error);
  void answer();
  void finish(ViewerResponse answer);
  void watch_for_departure();
  void refuse(int status, const std::string& why);
  void refuse_unparsable(Error error);
  void write(ViewerResponse answer);
  void on_written(Error error);
  void drain();

  HttpShared& shared_;
  boost::beast::tcp_stream stream_;
  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  ViewerRequest request_;
  boost::beast::http::response<Body> response_;
  std::optional<boost::beast::http::response_serializer<Body>> serializer_;
  std::shared_ptr<std::atomic<bool>> gone_;  // the client left
  std::string client_;
  State state_ = State::waiting;
  Clock::time_point since_;
  std::size_t drained_ = 0;
  bool keep_alive_ = false, head_only_ = false, ending_ = false, closed_ = false;
};

}  // namespace qkv::cli
