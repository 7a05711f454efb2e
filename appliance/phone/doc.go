// Package phone is a built-in SIP phone for demonstrations and tests.
package phone
