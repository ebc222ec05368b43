#include "http/connections.h"

#include <vector>

namespace qkv::cli {

bool Connections::add(const std::shared_ptr<Connection>& connection) {
  const std::string& client = connection->client();
  const auto count = per_client_.find(client);
  if (count != per_client_.end() && count->second >= limits_.per_client &&
      !close_longest_waiting(&client)) {
    return false;
  }
  if (all_.size() >= static_cast<std::size_t>(limits_.connections) && !close_longest_waiting()) {
    return false;
  }
  all_.emplace(connection.get(), connection);
  ++per_client_[client];
  return true;
}

void Connections::remove(const Connection& connection) {
  if (all_.erase(&connection) == 0) return;
  const auto count = per_client_.find(connection.client());
  if (--count->second == 0) per_client_.erase(count);
}

std::shared_ptr<Connection> Connections::oldest(Connection::State state,
                                                const std::string* client) const {
  std::shared_ptr<Connection> found;
  for (const auto& [address, one] : all_) {
    if (one->state() != state || (client != nullptr && one->client() != *client)) continue;
    if (!found || one->since() < found->since()) found = one;
  }
  return found;
}

bool Connections::close_longest_waiting(const std::string* client) {
  for (const auto state : {Connection::State::waiting, Connection::State::writing}) {
    if (const auto found = oldest(state, client)) {
      found->close();
      return true;
    }
  }
  return false;
}

void Connections::make_room_for_answers() {
  for (;;) {
    std::size_t unsent = 0;
    for (const auto& [address, one] : all_) unsent += one->unsent();
    if (unsent <= limits_.unsent) return;
    oldest(Connection::State::writing, nullptr)->close();
  }
}

void Connections::end() {
  const auto all = all_;  // an end may be a removal
  for (const auto& [address, one] : all) one->end();
}

void Connections::close() {
  const auto all = all_;
  for (const auto& [address, one] : all) one->close();
}

}  // namespace qkv::cli
