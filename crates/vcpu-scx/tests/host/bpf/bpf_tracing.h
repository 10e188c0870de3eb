// SPDX-License-Identifier: MIT OR GPL-2.0-only
// Nothing of it is used here.
