// A variable of the environment, for a test's duration.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace shortlist::test {

/// Sets the variable; null unsets it. What was there before comes back.
class environment_value {
 public:
  environment_value(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    set(value);
  }
  environment_value(const environment_value&) = delete;
  environment_value& operator=(const environment_value&) = delete;
  ~environment_value() { set(old_ ? old_->c_str() : nullptr); }

 private:
  void set(const char* value) {
    if (value) {
      setenv(name_, value, 1);
    } else {
      unsetenv(name_);
    }
  }
  const char* name_;
  std::optional<std::string> old_;
};

}  // namespace shortlist::test
