// All connections of a server, and who makes room when there are too many.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "http/connection.h"

namespace qkv::cli {

class Connections {
 public:
  explicit Connections(const HttpLimits& limits) : limits_(limits) {}

  // False where a limit is reached and all connections there are being answered.
  bool add(const std::shared_ptr<Connection>& connection);
  void remove(const Connection& connection);
  // Closes those that have not read their answers for the longest time while answers take too much
  // memory.
  void make_room_for_answers();
  bool close_longest_waiting(const std::string* client = nullptr);
  void end();
  void close();
  bool empty() const { return all_.empty(); }

 private:
  std::shared_ptr<Connection> oldest(Connection::State state, const std::string* client) const;

  const HttpLimits& limits_;
  std::map<const Connection*, std::shared_ptr<Connection>> all_;
  std::map<std::string, int> per_client_;
};

}  // namespace qkv::cli
