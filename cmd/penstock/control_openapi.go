// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/control/api"
)

// newControlOpenAPI returns the command that prints the description of the API.
func newControlOpenAPI() *cobra.Command {
	return &cobra.Command{Use: "openapi", Short: "Print the OpenAPI document of the API", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := json.MarshalIndent(api.New(api.Options{}).OpenAPI(), "", "  ")
			if err == nil {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", text)
			}
			return err
		}}
}
