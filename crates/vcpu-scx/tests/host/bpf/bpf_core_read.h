// SPDX-License-Identifier: MIT OR GPL-2.0-only
// Empty: the test uses nothing of this header.
