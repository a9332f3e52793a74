// A program built without CUDA: the factory of its operators is there, and says what to build.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/check.h"
#include "ops/make_ops.h"

namespace weft {
namespace {

TEST(WithoutCuda, AskingForItSaysWhatToBuild) {
  try {
    make_cuda_ops(3);
    FAIL() << "no error";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(),
                ::testing::AllOf(::testing::HasSubstr("CUDA device 3"), ::testing::HasSubstr("built without CUDA"),
                                 ::testing::HasSubstr("cmake --preset cuda")));
  }
}

}  // namespace
}  // namespace weft
